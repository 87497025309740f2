"""An epoch's data is continued, however often and by whatever it is read."""

import copy
import gc
import pickle
import random
from multiprocessing import active_children
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from lightning_sm._resume.data import prepare_loader, release_loader, sampler_of
from lightning_sm._resume.random_state import get_process_state, set_process_state
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import pl
from tests.helpers.series import LIBRARY, continue_from, outcome, saves_of, train_keeping_all
from tests.helpers.setups import BATCH_SIZE, Backwards, Numbers, Setup, Size, in_order, net, shuffled
from tests.helpers.setups.core import Lazy
from tests.helpers.setups.data import LengthlessWithState, Stream
from tests.resume.job import NAMESPACE
from tests.resume.test_random_state import loaders
from tests.resume.test_setups import chosen, differences

BATCHES = 10
QUIET: Any = {
    "accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
}  # fmt: skip


def with_loader(make):
    """A set-up with such a training loader."""
    return lambda pl, size: Setup(net(pl)(), make(size), in_order())


def more_loaders():
    numbers = Numbers(BATCHES * 4)
    return {
        **loaders(),
        "shuffled": DataLoader(numbers, batch_size=4, shuffle=True),
        "own batch sampler": DataLoader(numbers, batch_sampler=Backwards(len(numbers))),
        "one after the other": DataLoader(numbers, batch_size=4, sampler=Lazy(len(numbers), random)),
        "without batches": DataLoader(Numbers(BATCHES), batch_size=None, shuffle=True),
        "without a length": DataLoader(numbers, batch_sampler=Lengthless(len(numbers))),
    }


class Lengthless:
    """Batches of samples, as many as have room, without a length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        yield from (order[first : first + BATCH_SIZE] for first in range(0, self.count, BATCH_SIZE))


def fresh(kind):
    """The sampler of a new process, whose random numbers are others."""
    torch.manual_seed(random.randrange(10**6))
    loader = more_loaders()[kind]
    prepare_loader(loader, lambda: 0)
    return sampler_of(loader)


CUTS = st.lists(st.tuples(st.integers(1, BATCHES), st.integers(0, 3)), min_size=1, max_size=5)


@pytest.mark.parametrize("kind", more_loaders())
@settings(max_examples=10)
@given(cuts=CUTS, seed=st.integers(0, 99))
def test_a_chain_of_restarts_reads_what_one_run_reads(kind, cuts, seed):
    """Each restart comes after some batches, with some more already drawn for worker processes."""
    if kind == "one after the other":
        cuts = [(trained, 0) for trained, _ in cuts]  # it is drawn when it is trained
    before = get_process_state()
    whole, sampler = [], fresh(kind)
    pl.seed_everything(seed)
    for _ in range(4):
        whole.append(list(sampler))
    sampler, epochs, epoch = fresh(kind), [], []
    pl.seed_everything(seed)
    iterator = iter(sampler)
    for trained, ahead in cuts:
        trained = min(trained, BATCHES - len(epoch))
        epoch += [next(iterator) for _ in range(trained)]
        for _ in range(min(ahead, BATCHES - len(epoch))):
            next(iterator)
        if len(epoch) == BATCHES:
            assert list(iterator) == []
            epochs.append(epoch)
            if len(epochs) == 4:
                break
            epoch, iterator = [], iter(sampler)
            continue
        state, process = sampler.state(), get_process_state()
        sampler = fresh(kind)
        sampler.resume(state, len(epoch), repeats=False)
        iterator = iter(sampler)
        set_process_state(process)
    if len(epochs) < 4:
        epochs.append(epoch + list(iterator))
    while len(epochs) < 4:
        epochs.append(list(sampler))
    set_process_state(before)
    assert epochs == whole


@pytest.mark.parametrize(
    "name",
    [
        "metric_objects",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("workers", "stream", "several_loaders")),
    ],
)
def test_saves_of_continued_fits_are_as_good_as_those_of_the_first(tmp_path, name):
    size, choose = Size(epochs=3, batches=6), random.Random(name)
    directory = tmp_path / "0"
    whole = train_keeping_all(name, size, directory)
    expected, lines = outcome(whole), whole.logger.lines
    saves, restarts = saves_of(directory), 0
    while len(saves) > 1:
        restarts += 1
        save = saves[choose.randrange(min(6, len(saves) - 1))]
        again = continue_from(save, directory, tmp_path / str(restarts), name, size, save_every=0.01)
        assert outcome(again) == expected, (restarts, save)
        assert again.logger.lines == lines[len(lines) - len(again.logger.lines) :], (restarts, save)
        directory = tmp_path / str(restarts)
        saves = [each for each in saves_of(directory) if each["number"] > save["number"]]
    assert restarts >= 3


# --- data of other kinds


def leaves_epochs(pl, size):
    class Net(net(pl)):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 3 + self.current_epoch else None

    return Setup(Net(), shuffled(size), in_order())


class Generated:
    """Batches of any iterable, without a length."""

    def __init__(self, batches):
        self.loader = in_order(batches)

    def __iter__(self):
        yield from self.loader


class Sized(Generated):
    def __len__(self):
        return len(self.loader)


class Eager(Sampler):
    """Draws as Lightning's ``DistributedSamplerWrapper`` does, when it is asked for an iterator."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return iter(list(self.sampler))


def stateful(make_sampler):
    def setup(pl, size):
        StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        numbers = Numbers(size.samples)
        own = StatefulDataLoader(numbers, shuffle=True).sampler
        sampler = make_sampler(numbers, own)
        return Setup(net(pl)(), StatefulDataLoader(numbers, batch_size=BATCH_SIZE, sampler=sampler), in_order())

    return setup


class InPlace(Sampler):
    """Shuffles all that it holds, of which the data set has the first."""

    def __init__(self, order, count):
        self.order, self.count = order, count

    def __len__(self):
        return self.count

    def __iter__(self):
        numpy.random.shuffle(self.order)
        return (int(each) for each in self.order if int(each) < self.count)


def shuffled_in_place(order):
    return with_loader(
        lambda size: DataLoader(Numbers(size.samples), BATCH_SIZE, sampler=InPlace(order(), size.samples))
    )


class ProjectLoader(DataLoader):
    """As those of MONAI and PyTorch Geometric, which set nothing that changes."""


def own_loader(**workers):
    return with_loader(lambda size: ProjectLoader(Numbers(size.samples), BATCH_SIZE, shuffle=True, **workers))


class Collates:
    """Batches that grow with their number."""

    count = 0

    def __call__(self, samples):
        self.count += 1
        inputs, targets = torch.utils.data.default_collate(samples)
        return inputs * (1 + 0.01 * self.count), targets


class Mixes(Numbers):
    """Samples into which the one before is mixed."""

    last = 0.0

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        mixed, self.last = 0.9 * inputs + 0.1 * self.last, inputs
        return mixed, target


def concatenated(size):
    numbers = [torch.utils.data.Subset(Mixes(size.samples), range(8)), Mixes(size.samples - 8)]
    return DataLoader(torch.utils.data.ConcatDataset(numbers), BATCH_SIZE, shuffle=True)


ANEW = "what train_dataloader draws or counts"
AUGMENTED = "random numbers that worker processes draw for Numbers, as for augmentation, start again"
READ_AGAIN = "Generated is read again up to there, which takes time"
HELD = "what a sampler holds"
TOO_LARGE = f"Not restored: {HELD} in sampler.order, which takes more than 16 MiB."


@pytest.mark.parametrize(
    ("setup", "words", "is_told"),
    [
        pytest.param("reloaded_loaders", ANEW, True, id="loaders that are made anew"),
        pytest.param("plain", ANEW, False, id="loaders that are not"),
        pytest.param(shuffled_in_place(lambda: numpy.arange(2_200_000)), TOO_LARGE, True, id="a large array"),
        pytest.param(
            shuffled_in_place(lambda: [f"{each:0700}" for each in range(30_000)]), TOO_LARGE, True, id="texts"
        ),
        pytest.param(shuffled_in_place(lambda: list(range(280_000))), HELD, False, id="a list that is small enough"),
        pytest.param(own_loader(), HELD, False, id="what torch keeps in a loader of another class"),
        pytest.param(own_loader(num_workers=1, persistent_workers=True), HELD, False, id="with workers"),
        pytest.param(own_loader(num_workers=1), AUGMENTED, True, id="random numbers of workers"),
        pytest.param(with_loader(lambda size: Generated(size.batches)), READ_AGAIN, True, id="a generator"),
    ],
)
def test_a_line_tells_of_what_is_not_restored_and_of_nothing_else(tmp_path, caplog, setup, words, is_told):
    size = Size(epochs=2, batches=2)
    train_keeping_all(setup, size, tmp_path / "0")
    continue_from(saves_of(tmp_path / "0")[-2], tmp_path / "0", tmp_path / "1", setup, size)
    assert "Resuming within an epoch" in caplog.text
    assert (words in caplog.text) is is_told


def one_loader_for_both(pl, size):
    loader = DataLoader(Numbers(size.samples), BATCH_SIZE, shuffle=True)
    return Setup(net(pl)(), loader, loader, {"val_check_interval": 2})


def asked_before_the_fit(size):
    loader = shuffled(size, num_workers=2, persistent_workers=True)
    next(iter(loader))
    return loader


def labeled_and_not(unlabeled_batches, mode):
    def mixed(pl, size):
        class Net(net(pl)):
            def training_step(self, batch, batch_idx):
                return sum(self.loss(each) for each in batch.values() if each is not None)

        labeled = DataLoader(Numbers(4 * BATCH_SIZE), batch_size=BATCH_SIZE, shuffle=True)
        unlabeled = DataLoader(Stream(unlabeled_batches * BATCH_SIZE), batch_size=BATCH_SIZE)
        loaders = pl.utilities.CombinedLoader({"labeled": labeled, "unlabeled": unlabeled}, mode)
        return Setup(Net(), loaders, in_order())

    return mixed


def one_loader_twice(pl, size):
    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            return self.loss(batch["one"]) - 0.5 * self.loss(batch["other"])

    loader = shuffled(size)
    return Setup(Net(), {"one": loader, "other": loader}, in_order())


def two_without_a_length(pl, size):
    made = labeled_and_not(3, "max_size_cycle")(pl, size)
    made.train.flattened = [
        DataLoader(Numbers(count * BATCH_SIZE), batch_sampler=Lengthless(count * BATCH_SIZE)) for count in (6, 4)
    ]
    return made


class ToldStream(Stream):
    """Noisy samples, whose order follows from the epoch."""

    epoch = 0

    def __iter__(self):
        samples = list(super().__iter__())
        random.Random(self.epoch).shuffle(samples)
        return ([inputs + torch.randn(4), targets] for inputs, targets in samples)


def told_stream_with_workers(pl, size):
    class Net(net(pl)):
        def on_train_epoch_start(self):
            self.trainer.train_dataloader.dataset.epoch = self.current_epoch

    return Setup(Net(), DataLoader(ToldStream(size.samples), batch_size=BATCH_SIZE, num_workers=2), in_order())


class CountingStream(Stream):
    """Counts its epochs when its first sample is asked for."""

    epoch = 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        self.epoch += 1
        for inputs, targets in list(super().__iter__()):
            yield inputs * (1 + self.epoch / 10), targets


class OwnIterator(CountingStream):
    """Is its own iterator, as litdata's data sets."""

    def __iter__(self):
        self.samples = super().__iter__()
        self.index = 0
        return self

    def __next__(self):
        self.index += 1
        inputs, targets = next(self.samples)
        return inputs + self.index / 100, targets


class LazyWithState(DataLoader):
    """As litdata's: draws when its first batch is asked for, and begins anew only after it has seen the end."""

    taken, continues = 0, False

    def __iter__(self):
        first = self.taken if self.continues else 0
        for index, batch in enumerate(super().__iter__()):
            if index >= first:
                self.taken = index + 1
                yield batch
        self.continues = False

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken, self.continues = state["taken"], state["taken"] < len(self)


class Endless(DataLoader):
    """As timm's and ultralytics': its iterator, and with it the workers, goes on from one epoch to the next."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        return (next(self.iterator) for _ in range(len(self)))


def asks_for_batches(pl, size):
    class Net(net(pl)):
        def training_step(self, dataloader_iter):
            batch, index, _ = next(dataloader_iter)
            return self.loss(batch) * (1 + index / 10)

    return Setup(Net(), DataLoader(Stream(size.samples), batch_size=BATCH_SIZE), in_order())


class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


KEPT, STATEFUL = "an iterator that the loader keeps", "a state, shuffled by the epoch"
BEGIN_AGAIN = {
    "six unlabeled batches": labeled_and_not(6, "max_size_cycle"),
    "two loaders without a length": two_without_a_length,
}
OTHERS = {
    KEPT: with_loader(lambda size: Endless(Numbers(size.samples), batch_size=BATCH_SIZE)),
    "a stream that the step asks for batches": asks_for_batches,
    "a stream that is told of epochs": told_stream_with_workers,
    "an iterator of its own": with_loader(lambda size: DataLoader(OwnIterator(size.samples), BATCH_SIZE)),
    "a state, lazily": with_loader(lambda size: LazyWithState(Numbers(size.samples), BATCH_SIZE)),
    "a state without a length": with_loader(lambda size: LengthlessWithState(size.batches)),
    "batches without a length": with_loader(
        lambda size: DataLoader(Numbers(size.samples), batch_sampler=Lengthless(size.samples))
    ),
    "asked before the fit": with_loader(asked_before_the_fit),
    "three unlabeled batches": labeled_and_not(3, "max_size_cycle"),
    "the shortest loader's end": labeled_and_not(6, "min_size"),
    "the longest loader's end": labeled_and_not(6, "max_size"),
    "one loader for both": one_loader_for_both,
    "one loader twice": one_loader_twice,
    "epochs that are left": leaves_epochs,
    "an object": with_loader(lambda size: Sized(size.batches)),
    "a generator": with_loader(lambda size: Generated(size.batches)),
    "shuffled in place": shuffled_in_place(lambda: numpy.arange(600_000)),
    STATEFUL: stateful(lambda numbers, own: DistributedSampler(numbers, num_replicas=1, rank=0)),
    "a state, shuffled by torch": stateful(lambda numbers, own: SubsetRandomSampler(range(len(numbers)))),
    "a state, shuffled by a generator": stateful(
        lambda numbers, own: torch.utils.data.RandomSampler(numbers, generator=torch.Generator())
    ),
    "a state, shuffled as Lightning does for several processes": stateful(lambda numbers, own: Eager(own)),
    "a function of batches that counts": with_loader(
        lambda size: DataLoader(Numbers(size.samples), BATCH_SIZE, shuffle=True, collate_fn=Collates())
    ),
    "data sets in others": with_loader(concatenated),
    **BEGIN_AGAIN,
}
FAST = {KEPT, STATEFUL}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.full) for kind in OTHERS]
)
def test_data_of_other_kinds(tmp_path, caplog, kind):
    """Where shorter loaders begin again, Lightning fetches a batch ahead, with which one of them may do so."""
    assert differences(OTHERS[kind], tmp_path, list if kind in BEGIN_AGAIN else chosen) == {}
    begins_again = "the order of Numbers, whose loader keeps an iterator of its own: it begins again"
    assert (begins_again in caplog.text) is (kind == KEPT)


def test_a_program_sees_and_changes_its_own_sampler(tmp_path):
    sampler: Any = BatchSampler(SequentialSampler(range(8)), 2, drop_last=False)
    loader = DataLoader(Numbers(8), batch_sampler=sampler)
    prepare_loader(loader, lambda: 0)
    prepare_loader(loader, lambda: 0)
    loader.batch_sampler.batch_size = 4
    loader.batch_sampler.state = "a word that the package uses, too"
    assert (sampler.batch_size, sampler.state, len(loader)) == (4, loader.batch_sampler.state, 2)
    assert [len(batch[0]) for batch in loader] == [4, 4]
    del loader.batch_sampler.state
    assert not hasattr(loader.batch_sampler, "state")
    assert isinstance(loader.batch_sampler, BatchSampler)
    for copied in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        other = copied(loader.batch_sampler)
        assert type(other) is BatchSampler
        other.batch_size = 1
        assert sampler.batch_size == 4
    release_loader(loader)
    assert loader.batch_sampler is sampler


def test_a_loader_has_its_own_sampler_after_the_fit(tmp_path):
    """For a prediction Lightning makes another one of its class."""
    made = LIBRARY["plain"](pl, Size())
    seen = []

    class Ramp(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            made.train.batch_sampler.batch_size = 2 * BATCH_SIZE

        def on_train_epoch_end(self, trainer, pl_module):
            seen.append(trainer.global_step)

    class Net(type(made.model)):
        def predict_step(self, batch, batch_idx):
            return len(batch[0])

    ours = callback_class(NAMESPACE, "AutoResume")(str(tmp_path))
    trainer = pl.Trainer(callbacks=[Ramp(), ours], **QUIET)
    sampler = made.train.batch_sampler
    model = Net()
    trainer.fit(model, made.train)
    assert seen[1] - seen[0] == 3
    assert made.train.batch_sampler is sampler
    assert sum(trainer.predict(model, made.train)) == 24


def test_worker_processes_end_with_the_fit(tmp_path):
    made = LIBRARY["augmenting_workers"](pl, Size())
    ours = callback_class(NAMESPACE, "AutoResume")(str(tmp_path))
    before = active_children()
    gc.disable()
    try:
        pl.Trainer(callbacks=[ours], **QUIET).fit(made.model, made.train)
        assert active_children() == before
    finally:
        gc.enable()


def test_other_data_begins_the_epoch_again_and_says_so(lines, tmp_path):
    """Steps, epochs and what follows from them are those of a fit that was not interrupted."""
    size = Size(epochs=3, batches=6)
    train_keeping_all("plain", size, tmp_path / "whole")
    save = next(save for save in saves_of(tmp_path / "whole") if save["step"] == 8)
    again = continue_from(save, tmp_path / "whole", tmp_path / "again", "plain", Size(epochs=3, batches=4))
    assert (again.current_epoch, again.global_step) == (3, 8 + 2 * 4)
    changes = "but the number of batches was [6] and is [4]."
    assert f"Restarting epoch 1: the checkpoint is from epoch 1 after 2 batches, {changes}" in lines


@pytest.mark.full
def test_a_stream_that_has_become_shorter_than_what_was_trained_ends_its_epoch(tmp_path):
    train_keeping_all("stream", Size(epochs=2, batches=6), tmp_path / "whole")
    save = next(save for save in saves_of(tmp_path / "whole") if save["step"] == 4)
    again = continue_from(save, tmp_path / "whole", tmp_path / "again", "stream", Size(epochs=2, batches=2))
    assert (again.current_epoch, again.global_step) == (2, 4 + 2)
