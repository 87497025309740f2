"""Set-ups whose data, samplers and random numbers keep a state of their own."""

import random

import torch
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler, get_worker_info

from tests.helpers.setups.core import (
    BATCH_SIZE,
    Counting,
    Numbers,
    Setup,
    in_order,
    net,
    plateau,
    sampled,
    scheduled,
    setup,
    shuffled,
)


def _whole(pl, size, sampler):
    """Every rank has the samples of a sampler, in whose place Lightning would put one of its own."""
    made = sampled(pl, size, sampler)
    made.arguments.update({"use_distributed_sampler": False} if size.ranks > 1 else {})
    return made


@setup
def sampler_that_counts_epochs(pl, size):
    return _whole(pl, size, Counting(size.samples))


class Reordering:
    """Shuffles its own batches, in place, so that each order follows from the one before. No class of torch's."""

    def __init__(self, size):
        self.buckets = {remainder: torch.arange(remainder, size, 3).tolist() for remainder in range(3)}

    def __len__(self):
        return len(list(self._batches()))

    def _batches(self):
        for bucket in self.buckets.values():
            yield from (bucket[first : first + BATCH_SIZE] for first in range(0, len(bucket), BATCH_SIZE))

    def __iter__(self):
        for bucket in self.buckets.values():
            random.shuffle(bucket)
        yield from self._batches()


@setup
def sampler_that_shuffles_its_own_list(pl, size):
    return Setup(net(pl)(), DataLoader(Numbers(size.samples), batch_sampler=Reordering(size.samples)))


@setup
def changed_weights(pl, size):
    """Hard samples are drawn more often: a callback changes the weights after each batch."""
    sampler = WeightedRandomSampler(torch.ones(size.samples), size.samples)

    class Harden(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            sampler.weights[batch_idx] += 5 * outputs["loss"].item()

    made = _whole(pl, size, sampler)
    made.arguments["callbacks"] = [Harden()]
    return made


class Stream(IterableDataset):
    """Samples without a length, split among worker processes."""

    def __init__(self, count):
        self.data = Numbers(count)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.data[index] for index in range(first, len(self.data), step))


@setup
def stream(pl, size):
    return Setup(net(pl)(), DataLoader(Stream(size.batches * BATCH_SIZE), batch_size=BATCH_SIZE), in_order())


class StreamWithPosition(IterableDataset):
    """Begins an epoch where the program tells it."""

    def __init__(self, count):
        self.data, self.first = Numbers(count), None

    def __iter__(self):
        first, self.first = self.first or 0, None
        return (self.data[index] for index in range(first, len(self.data)))


@setup
def stream_with_a_position(pl, size):
    """The program itself saves where its data goes on, and sets it in a restart."""
    data = StreamWithPosition(size.batches * BATCH_SIZE)

    class Net(net(pl)):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["taken"] = self.trainer.fit_loop.epoch_loop.batch_progress.current.completed

        def on_load_checkpoint(self, checkpoint):
            data.first = checkpoint["taken"] * BATCH_SIZE

    return Setup(Net(), DataLoader(data, batch_size=BATCH_SIZE), in_order())


class LengthlessWithState:
    """Counts what it has handed out, as torchdata's loader does."""

    def __init__(self, batches):
        self.loader = DataLoader(Stream(batches * BATCH_SIZE), batch_size=BATCH_SIZE)
        self.batches, self.taken = batches, 0

    def __iter__(self):
        # Not in the generator: to make it draws a random number, which belongs to the start of the epoch.
        return self._left(iter(self.loader))

    def _left(self, batches):
        for index, batch in enumerate(batches):
            if index >= self.taken:
                self.taken = index + 1
                yield batch
        self.taken = 0

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


class LoaderWithState(LengthlessWithState):
    """Is not asked for more than its length."""

    def __len__(self):
        return self.batches

    def __iter__(self):
        self.taken %= self.batches
        return super().__iter__()


@setup
def stream_with_state(pl, size):
    return Setup(net(pl)(), LoaderWithState(size.batches), in_order())


@setup
def data_module_with_state(pl, size):
    class Data(pl.LightningDataModule):
        """Makes its samples larger from batch to batch."""

        def __init__(self):
            super().__init__()
            self.count = 0

        def train_dataloader(self):
            return shuffled(size)

        def val_dataloader(self):
            return in_order()

        def on_after_batch_transfer(self, batch, dataloader_idx):
            if not self.trainer.training:
                return batch
            self.count += 1
            return [batch[0] * (1 + 0.01 * self.count), batch[1]]

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    return Setup(net(pl)(), Data())


@setup
def augmenting_workers(pl, size):
    return Setup(net(pl)(), shuffled(size, noisy=True, num_workers=1))


@setup
def persistent_workers(pl, size):
    return Setup(net(pl)(), shuffled(size, num_workers=2, persistent_workers=True), in_order())


# --- random numbers of ranks


@setup
def seeds_by_rank(pl, size):
    class Net(net(pl)):
        def on_fit_start(self):
            torch.manual_seed(20 + self.global_rank)

        def training_step(self, batch, batch_idx):
            torch.rand(self.global_rank * (1 + batch_idx))
            return self.loss(batch)

    return Setup(Net(), shuffled(size))


# --- schedulers beside validation


@setup
def plateau_by_step(pl, size):
    often = size.batches // 2
    model = scheduled(pl, plateau, monitor="val_loss", interval="step", frequency=often, strict=False)
    return Setup(model, shuffled(size), in_order(3), {"val_check_interval": often})
