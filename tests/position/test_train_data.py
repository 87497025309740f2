from dataclasses import replace

import pytest
from torch.utils.data import DataLoader, IterableDataset

from lightning_sm._checkpoint.train_data import TrainData, changes, keeps_state, reason_against, train_data


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Stateful(DataLoader):
    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def test_loaders_are_described():
    own = DataLoader(range(6), batch_sampler=[[0, 1], [2, 3, 4, 5]])
    loaders = [DataLoader(range(10), batch_size=4), own, DataLoader(Stream(), batch_size=2), iter(range(3))]
    assert train_data(2, loaders) == TrainData(2, [3, 2, None, None], [4, None, 2, None])


DATA = TrainData(world_size=2, batches=[3, None], batch_sizes=[4, None])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"world_size": 4}, "its world_size was 2 and is 4"),
        ({"batch_sizes": [8, None]}, "its batch size was 4 and unknown and is 8 and unknown"),
        ({"batches": [5]}, "an epoch had 3 and unknown batches for each rank and has 5"),
    ],
)
def test_changes_are_said(changed, said):
    assert changes(DATA, replace(DATA, **changed)) == said


def test_all_changes_are_said():
    now = TrainData(1, [6, None], [2, None])
    assert changes(DATA, now).count(" and is ") == 2
    assert "has 6" in changes(DATA, now)


def test_which_loaders_have_a_position():
    assert reason_against(DataLoader(range(3))) is None
    assert reason_against(DataLoader(Stream())).startswith("Stream is an IterableDataset")
    assert reason_against([1, 2]) == "list is not a torch DataLoader"


def test_which_loaders_keep_their_own_state():
    assert keeps_state(Stateful(range(3)))
    assert not keeps_state(DataLoader(range(3)))
