import random

import numpy
import pytest
import torch

from lightning_sm._checkpoint.rng_state import random_states, set_random_states, states_from_plain, states_to_plain


def draw():
    return random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), float(torch.rand(()))


@pytest.fixture(autouse=True)
def as_before():
    before = random_states()
    yield
    set_random_states(before)


@pytest.mark.parametrize("way", [lambda states: states, lambda states: states_from_plain(states_to_plain(states))])
def test_what_is_drawn_is_drawn_again(way):
    draw()  # of two normal numbers that are made at once, the second waits in the state
    states = way(random_states())
    first = draw()
    assert draw() != first
    set_random_states(states)
    assert draw() == first


def test_reading_draws_nothing():
    states = random_states()
    first = draw()
    set_random_states(states)
    random_states()
    assert draw() == first


def test_plain_states_are_tensors_numbers_and_strings():
    def leaves(value):
        if isinstance(value, (dict, list)):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from leaves(inner)
        else:
            yield type(value)

    assert set(leaves(states_to_plain(random_states()))) <= {torch.Tensor, int, float, str, type(None)}


def test_without_cuda_its_states_are_neither_read_nor_set():
    states = random_states()
    assert "cuda" not in states
    if not torch.cuda.is_available():
        set_random_states({**states, "cuda": torch.zeros(16, dtype=torch.uint8)})
