import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_sm._position.rank_state import state_from_tensor, state_to_tensor
from lightning_sm._position.rng_state import (
    find_generators,
    get_generator_state,
    get_rng_states,
    rng_states_to_plain,
    set_generator_states,
)
from lightning_sm._position.sampler import describe_losses


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
    found = find_generators(holder)
    assert len(found) == 6
    states = {path: get_generator_state(generator) for path, generator in found.items()}
    drawn = {path: draw(generator) for path, generator in found.items()}
    state = state_from_tensor(state_to_tensor({"rng_states": get_rng_states(), "own": states}))
    another = find_generators(Holder())
    for generator in another.values():
        draw(generator)
    set_generator_states(another, state["own"])
    assert {path: draw(generator) for path, generator in another.items()} == drawn


def test_a_generator_of_something_else_is_left_out():
    holder = Holder()
    assert len(find_generators(holder, exclude={"one": holder.nested[0]})) == 5
    assert find_generators(None) == {}


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
    back = state_from_tensor(
        state_to_tensor({"rng_states": get_rng_states(), "values": [value, {"same": value.clone()}]})
    )
    for read in (back["values"][0], back["values"][1]["same"]):
        assert read.dtype == value.dtype
        assert read.shape == value.shape
        assert torch.equal(read, value)


def test_what_is_equal_is_written_once():
    states = rng_states_to_plain(get_rng_states())
    one = len(state_to_tensor({"rng_states": get_rng_states()}))
    assert len(state_to_tensor({"rng_states": get_rng_states(), "again": states, "and again": states})) < 1.1 * one


def test_losses_name_what_cannot_be_restored():
    assert describe_losses(DataLoader([1.0]), draws_lazily=False) == []
    (workers,) = describe_losses(DataLoader([1.0], num_workers=2), draws_lazily=False)
    assert "random numbers that the 2 worker processes draw for list" in workers
    assert "StatefulDataLoader" in workers
    (order,) = describe_losses(DataLoader([1.0]), draws_lazily=True)
    assert order.startswith("the sampler draws for each item")
