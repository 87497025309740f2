import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_sm._checkpoint.rank_state import from_bytes, to_bytes
from lightning_sm._checkpoint.rng_state import (
    generators_in,
    random_states,
    read_generator,
    set_generators,
    states_to_plain,
)
from lightning_sm._checkpoint.train_data import losses


class Holder:
    def __init__(self):
        self.rngs = {"torch": torch.Generator().manual_seed(1), "python": random.Random(1)}
        self.nested = [numpy.random.default_rng(1), (numpy.random.RandomState(1),)]
        self.others = [numpy.random.Generator(kind(1)) for kind in (numpy.random.Philox, numpy.random.SFC64)]
        self.system = random.SystemRandom()
        self.itself = self


def draw(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    return [float(generator.random()) for _ in range(3)] if hasattr(generator, "random") else generator.rand(3).tolist()


def test_generators_are_found_read_and_set():
    holder = Holder()
    found = generators_in(holder)
    assert len(found) == 6
    states = {path: read_generator(generator) for path, generator in found.items()}
    drawn = {path: draw(generator) for path, generator in found.items()}
    state = from_bytes(to_bytes({"random_states": random_states(), "own": states}))
    another = generators_in(Holder())
    for generator in another.values():
        draw(generator)
    set_generators(another, state["own"])
    assert {path: draw(generator) for path, generator in another.items()} == drawn


def test_a_generator_of_something_else_is_left_out():
    holder = Holder()
    assert len(generators_in(holder, but={"one": holder.nested[0]})) == 5
    assert generators_in(None) == {}


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(1.5),
        torch.tensor([True, False]),
        torch.zeros(0),
        torch.rand(2, 3, dtype=torch.float64).t(),
        torch.tensor([1.0, float("inf")], dtype=torch.bfloat16),
    ],
)
def test_tensors_come_back_as_they_were(value):
    back = from_bytes(to_bytes({"random_states": random_states(), "values": [value, {"same": value.clone()}]}))
    for read in (back["values"][0], back["values"][1]["same"]):
        assert read.dtype == value.dtype
        assert read.shape == value.shape
        assert torch.equal(read, value)


def test_what_is_equal_is_written_once():
    states = states_to_plain(random_states())
    one = len(to_bytes({"random_states": random_states()}))
    assert len(to_bytes({"random_states": random_states(), "again": states, "and again": states})) < 1.1 * one


def test_losses_name_what_cannot_be_restored():
    assert losses(DataLoader([1.0]), draws_as_it_goes=False) == []
    (workers,) = losses(DataLoader([1.0], num_workers=2), draws_as_it_goes=False)
    assert "random numbers that the 2 worker processes draw for list" in workers
    assert "StatefulDataLoader" in workers
    (order,) = losses(DataLoader([1.0]), draws_as_it_goes=True)
    assert order.startswith("the sampler draws while the epoch goes on")
