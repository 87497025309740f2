"""Each set-up of the library, interrupted at several moments and resumed, ends as the run that nothing interrupted."""

import pytest
import torch
from torch.utils.data import DistributedSampler

from tests.helpers.interrupted import NAMESPACE, LastSaver, path_of, train_setup, weights_of
from tests.helpers.setups import BATCH_SIZE, SETUPS, Numbers, Setup, Size, net
from tests.helpers.setups_callbacks import CALLBACK_SETUPS
from tests.helpers.setups_data import DATA_SETUPS

pytestmark = pytest.mark.skipif(NAMESPACE.version < (1, 6), reason="Lightning 1.5 goes on with the next epoch")

SIZE = Size(epochs=3, batches=6)
# In an epoch of six batches: within the first, after the last of the second, within a validation, after it, in between.
MOMENTS = [
    ("on_train_batch_end", 3),
    ("on_train_batch_end", 12),
    ("on_validation_batch_end", 1),
    ("on_validation_end", 1),
    ("on_train_epoch_end", 1),
]


@pytest.mark.parametrize("name", sorted(SETUPS))
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, name):
    check(tmp_path, name, MOMENTS)


def check(tmp_path, name, moments):
    saver = LastSaver(tmp_path, moments)
    whole = train_setup(name, SIZE, [saver])
    written = [moment for moment in moments if moment[1] <= saver.calls.get(moment[0], 0)]
    assert len(written) >= 3
    for moment in written:
        resumed = train_setup(name, SIZE, checkpoint=path_of(tmp_path, *moment))
        assert weights_of(resumed) == weights_of(whole), moment
        assert resumed.global_step == whole.global_step, moment
        logged = resumed.logger.lines
        assert logged == whole.logger.lines[len(whole.logger.lines) - len(logged) :], moment


@pytest.mark.skipif(NAMESPACE.version < (2, 2), reason="Lightning restores no state of loaders before 2.2")
def test_a_loader_that_keeps_its_own_state(tmp_path, monkeypatch):
    monkeypatch.setitem(SETUPS, "stream_with_state", DATA_SETUPS["stream_with_state"])
    test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, "stream_with_state")


@pytest.mark.skipif(NAMESPACE.version < (2, 2), reason="Lightning restores no state of loaders before 2.2")
@pytest.mark.parametrize("name", ["stateful_loader", "stateful_loader_with_workers"])
def test_a_loader_that_keeps_its_own_state_goes_on_between_any_two_epochs(tmp_path, name):
    pytest.importorskip("torchdata.stateful_dataloader")
    check(tmp_path, name, [("on_train_epoch_end", 1), ("on_train_epoch_end", 2), ("on_train_batch_end", 13)])


class _Eager(torch.utils.data.Sampler):
    """Draws as Lightning's ``DistributedSamplerWrapper`` does, when it is asked for an iterator."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return iter(list(self.sampler))


@pytest.mark.skipif(NAMESPACE.version < (2, 2), reason="Lightning restores no state of loaders before 2.2")
@pytest.mark.parametrize("kind", ["by the epoch", "by torch", "by a generator", "as Lightning's for several processes"])
def test_a_loader_that_keeps_its_own_state_and_whose_sampler_shuffles(tmp_path, monkeypatch, kind):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(pl, size):
        numbers = Numbers(size.samples)
        own = type(stateful.StatefulDataLoader(numbers, shuffle=True).sampler)
        sampler = {
            "by the epoch": lambda: DistributedSampler(numbers, num_replicas=1, rank=0),
            "by torch": lambda: torch.utils.data.SubsetRandomSampler(range(len(numbers))),
            "by a generator": lambda: torch.utils.data.RandomSampler(numbers, generator=torch.Generator()),
            "as Lightning's for several processes": lambda: _Eager(own(numbers)),
        }[kind]()
        return Setup(net(pl)(), stateful.StatefulDataLoader(numbers, batch_size=BATCH_SIZE, sampler=sampler))

    monkeypatch.setitem(SETUPS, "loader", loader)
    # Within the second epoch, whose order is not the first one's.
    moments = [("on_train_batch_end", 9), ("on_train_epoch_end", 1), ("on_train_epoch_end", 2)]
    check(tmp_path, "loader", moments)


@pytest.mark.skipif(NAMESPACE.version < (2,), reason="a resumed average ends otherwise in Lightning 1.9")
def test_statistics_of_batch_norm_that_have_been_computed_after_the_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setitem(SETUPS, "averaging", CALLBACK_SETUPS["stochastic_weight_averaging"])
    moments = [("on_train_batch_end", 22), ("on_train_batch_end", 24), ("on_validation_end", 4)]
    check(tmp_path, "averaging", moments)
