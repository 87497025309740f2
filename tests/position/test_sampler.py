from dataclasses import replace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from lightning_sm._position.sampler import (
    ResumableSampler,
    TrainData,
    describe_changes,
    describe_train_data,
    is_stateful,
    resumable_sampler_of,
    unsupported_reason,
    unwrap_sampler,
    wrap_sampler,
)


def batches(size=12, generator=None):
    return BatchSampler(RandomSampler(range(size), generator=generator), 3, drop_last=False)


class Eager:
    """Draws its order when it is asked for an iterator."""

    def __init__(self, size=4):
        self.order = None
        self.size = size

    def __iter__(self):
        return iter(torch.randperm(self.size).tolist())

    def __len__(self):
        return self.size


@pytest.mark.parametrize("make", [batches, Eager])
def test_it_draws_what_the_wrapped_sampler_draws(make):
    torch.manual_seed(1)
    expected = [list(make()), list(make()), float(torch.rand(()))]
    torch.manual_seed(1)
    sampler = ResumableSampler(make())
    assert [list(sampler), list(sampler), float(torch.rand(()))] == expected


@pytest.mark.parametrize("make", [batches, Eager])
@pytest.mark.parametrize("skip", [0, 1, 3, 4])
def test_it_goes_on_in_the_same_order(make, skip):
    torch.manual_seed(1)
    first = ResumableSampler(make())
    order = list(first)
    torch.manual_seed(2)
    expected = float(torch.rand(()))
    torch.manual_seed(2)
    second = ResumableSampler(make())
    second.resume(first.start_state(), skip)
    assert list(second) == order[skip:]
    assert float(torch.rand(())) == expected
    # Where that epoch is interrupted again, it still begins as the first did.
    third = ResumableSampler(make())
    third.resume(second.start_state(), 2)
    assert list(third) == order[2:]


def test_the_next_iteration_is_a_whole_one():
    sampler = ResumableSampler(batches())
    list(sampler)
    sampler.resume(sampler.start_state(), 2)
    assert [len(list(sampler)), len(list(sampler))] == [2, 4]
    sampler.resume(sampler.start_state(), 2)
    assert len([next(iter(sampler)), next(iter(sampler))]) == 2
    sampler.cancel_resume()
    assert len(list(sampler)) == 4


def test_without_a_start_only_the_number_counts():
    sampler = ResumableSampler(batches())
    assert sampler.start_state() is None
    sampler.resume(None, 3)
    torch.manual_seed(1)
    order = list(batches())
    torch.manual_seed(1)
    assert list(sampler) == order[3:]
    assert sampler.start_state() is not None


def test_a_generator_of_the_sampler_goes_on_from_there():
    def seeded(seed):
        return ResumableSampler(batches(generator=torch.Generator().manual_seed(seed)))

    first, second = seeded(5), seeded(6)
    order = list(first)
    second.resume(first.start_state(), 2)
    assert list(second) == order[2:]
    following = list(first)
    assert following != order
    assert list(second) == following


def test_all_else_is_the_wrapped_samplers():
    class Epochs(Eager):
        def set_epoch(self, epoch):
            self.epoch = epoch

    sampler = ResumableSampler(Epochs(7))
    sampler.set_epoch(3)
    assert (len(sampler), sampler.size, sampler.epoch, sampler.wrapped.epoch) == (7, 7, 3, 3)
    assert not hasattr(sampler, "sampler")


@pytest.mark.parametrize("arguments", [{"batch_size": 2, "shuffle": True}, {"batch_size": None, "shuffle": True}])
def test_a_loader_loads_nothing_of_what_is_skipped(arguments):
    loaded = []

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            loaded.append(index)
            return index

    loader = DataLoader(Data(), **arguments)
    own = loader.sampler if arguments["batch_size"] is None else loader.batch_sampler
    wrap_sampler(loader)
    sampler = resumable_sampler_of(loader)
    wrap_sampler(loader)
    assert resumable_sampler_of(loader) is sampler
    assert sampler.wrapped is own
    whole = [torch.as_tensor(batch).tolist() for batch in loader]
    del loaded[:]
    sampler.resume(sampler.start_state(), 3)
    assert [torch.as_tensor(batch).tolist() for batch in loader] == whole[3:]
    assert len(loaded) == 8 - 3 * (arguments["batch_size"] or 1)
    unwrap_sampler(loader)
    unwrap_sampler(loader)
    assert resumable_sampler_of(loader) is None
    assert own is (loader.sampler if arguments["batch_size"] is None else loader.batch_sampler)


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
    assert describe_train_data(2, loaders) == TrainData(2, [3, 2, None, None], [4, None, 2, None])


DATA = TrainData(world_size=2, batches=[3, None], batch_sizes=[4, None])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"world_size": 4}, "its world_size was 2 and is 4"),
        ({"batch_sizes": [8, None]}, "its batch size was 4 and unknown and is 8 and unknown"),
        ({"batches": [5]}, "an epoch had 3 and unknown batches per rank and has 5"),
    ],
)
def test_changes_are_said(changed, said):
    assert describe_changes(DATA, replace(DATA, **changed)) == said


def test_all_changes_are_said():
    now = TrainData(1, [6, None], [2, None])
    assert describe_changes(DATA, now).count(" and is ") == 2
    assert "has 6" in describe_changes(DATA, now)


def test_which_loaders_have_a_position():
    assert unsupported_reason(DataLoader(range(3))) is None
    assert unsupported_reason(DataLoader(Stream())).startswith("Stream is an IterableDataset")
    assert unsupported_reason([1, 2]) == "list is not a torch DataLoader"


def test_which_loaders_keep_their_own_state():
    assert is_stateful(Stateful(range(3)))
    assert not is_stateful(DataLoader(range(3)))
