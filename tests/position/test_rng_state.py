import random

import numpy
import pytest
import torch

from lightning_sm._position.rng_state import (
    get_rng_states,
    rng_states_from_plain,
    rng_states_to_plain,
    set_rng_states,
)


def draw():
    return random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), float(torch.rand(()))


@pytest.fixture(autouse=True)
def as_before():
    before = get_rng_states()
    yield
    set_rng_states(before)


@pytest.mark.parametrize(
    "way", [lambda states: states, lambda states: rng_states_from_plain(rng_states_to_plain(states))]
)
def test_what_is_drawn_is_drawn_again(way):
    draw()  # of two normal numbers that are made at once, the second waits in the state
    states = way(get_rng_states())
    first = draw()
    assert draw() != first
    set_rng_states(states)
    assert draw() == first


def test_reading_draws_nothing():
    states = get_rng_states()
    first = draw()
    set_rng_states(states)
    get_rng_states()
    assert draw() == first


def test_plain_states_are_tensors_numbers_and_strings():
    def leaves(value):
        if isinstance(value, (dict, list)):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from leaves(inner)
        else:
            yield type(value)

    assert set(leaves(rng_states_to_plain(get_rng_states()))) <= {torch.Tensor, int, float, str, type(None)}


def test_without_cuda_its_states_are_neither_read_nor_set():
    states = get_rng_states()
    assert "cuda" not in states
    if not torch.cuda.is_available():
        set_rng_states({**states, "cuda": torch.zeros(16, dtype=torch.uint8)})
