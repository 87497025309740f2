"""Rates count batches, samples and waits, and nothing else."""

from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_sm._observe.rates import BatchSize, Counter, Rates


def test_a_validation_does_not_count():
    now = [100.0]
    counter = Counter(lambda: now[0])
    for _ in range(4):
        now[0] += 0.5
        counter.fetch_started()
        now[0] += 0.5
        counter.fetch_ended()
        counter.count(8)
        counter.pause()
        now[0] += 10
        counter.resume()
    assert counter.total == Rates(seconds=4.0, batches=4, samples=32, waited=2.0)
    assert (counter.total.data_wait, counter.paused_for) == (0.5, 40.0)


IMAGES = [torch.zeros(3, 8, 8)] * 4


@pytest.mark.parametrize(
    ("batches", "sizes"),
    [
        ([torch.zeros(4, 2), torch.zeros(2, 2)], [4, 2]),
        ([(torch.zeros(4, 2), torch.zeros(4))], [4]),
        ([{"text": ["a"] * 4, "ids": torch.zeros(4, 9)}], [4]),
        ([{"images": IMAGES, "boxes": [{}] * 4}] * 2, [4, 4]),
        ([["a", "b", "c", "d"], ["a"]], [4, 4]),
        ([None, 3.0], [4, 4]),
        ([torch.tensor(1.0)], [4]),
        ([(torch.zeros(4), torch.zeros(4, 4))], [4]),
    ],
)
def test_the_size_of_a_batch(batches, sizes):
    reader = BatchSize([DataLoader(TensorDataset(torch.zeros(9)), batch_size=4)])
    assert [reader.read(batch) for batch in batches] == sizes


def test_the_size_of_a_batch_without_a_loader_that_says_it():
    own = BatchSize([[torch.zeros(3, 2)]])
    assert [own.read(torch.zeros(3, 2)), own.read(["a"]), own.read(torch.zeros(7))] == [3, None, 7]
    two = BatchSize([DataLoader([1, 2], batch_size=2), DataLoader([1], batch_size=1)])
    assert two.read({"a": torch.zeros(2), "b": torch.zeros(1)}) == 2
    assert BatchSize([DataLoader([1, 2], batch_size=None)]).read({"a": {"b": {"c": {"d": {"e": "f"}}}}}) is None


def test_batches_and_loaders_of_the_users_own_raise_nothing():
    anything = Mock()
    assert BatchSize([DataLoader([1, 2], batch_size=2)]).read(anything) == 2
    assert BatchSize([anything]).read(anything) is None
