"""Callbacks that a strategy with parts of the weights cannot serve, by the names of Lightning's classes."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._distributed import sharded_callbacks
from lightning_sm._distributed.sharded_callbacks import warn_of_own_states
from tests.projects.container import log_lines


def named(name, **attributes):
    """An object whose class has the name of one of Lightning's."""
    return type(name, (), attributes)()


@pytest.fixture
def gathered(monkeypatch):
    """What each rank has sent to the others."""
    sent = []

    def gather_objects(trainer, value):
        sent.append(value)
        return sent

    monkeypatch.setattr(sharded_callbacks, "gather_objects", gather_objects)
    return sent


def warned(*checkpoints):
    """What is logged when the last rank has sent its states."""
    trainer = SimpleNamespace(strategy=named("FSDPStrategy"), world_size=len(checkpoints), is_global_zero=True)
    with log_lines() as lines:
        for checkpoint in checkpoints:
            warn_of_own_states(trainer, checkpoint)
    return lines


def state(*values, **more):
    return {"state_dict": {"part": torch.rand(3)}, "callbacks": {"Average{'x': 1}": {"all": [*values], **more}}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor(2**53), torch.tensor(2**53 + 1)),  # which float64 cannot tell apart
        (torch.ones(2, dtype=torch.bfloat16), torch.tensor([1, 1.0078125], dtype=torch.bfloat16)),
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.arange(4.0)[::2], torch.arange(4.0)[1::2]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("gathered")
def test_a_state_that_differs_between_ranks_is_named(first, second):
    (line,) = warned(state(torch.ones(2), first), state(torch.ones(2), second))
    assert line.startswith("global_rank 1 has other tensors than global_rank 0 in the state of Average, and")


@pytest.mark.parametrize("at", ["cpu", "meta"])
def test_equal_states_are_not(gathered, at):
    kept = torch.tensor([float("nan"), 1.0], requires_grad=True), torch.empty(0), torch.eye(2).to_sparse(), {"a": (1,)}
    kept = (*kept, torch.ones(2, device=at))
    assert warned(state(*kept, step=1), state(*kept, step=2)) == [], "only tensors are compared"
    assert len(gathered) == 2


def test_little_is_gathered(gathered):
    many = [torch.rand(100) for _ in range(100)]
    assert warned(state(*many), state(*many)) == []
    assert len(pickle.dumps(gathered[0])) < 100
