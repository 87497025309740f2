"""Callbacks that a strategy with parts of the weights cannot serve, by the names of Lightning's classes."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._distributed import sharded_callbacks
from lightning_sm._distributed.sharded_callbacks import warn_of_own_states
from tests.projects.container import log_lines


@pytest.fixture
def sent(monkeypatch):
    """What each rank has sent to the others."""
    found = []
    monkeypatch.setattr(sharded_callbacks, "gather_objects", lambda trainer, value: found.append(value) or found)
    return found


def warned(*states):
    """What is logged when the last rank has sent the state of its callback."""
    strategy = type("FSDPStrategy", (), {"__module__": "pytorch_lightning.strategies"})()
    trainer = SimpleNamespace(strategy=strategy, world_size=len(states), is_global_zero=True)
    with log_lines() as lines:
        for step, state in enumerate(states):
            callbacks = {} if state is None else {"Average{'x': 1}": {"all": state, "step": step}}
            checkpoint = {"state_dict": {"part": torch.rand(3)}, "callbacks": callbacks}
            warn_of_own_states(trainer, checkpoint)
    return lines


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
@pytest.mark.usefixtures("sent")
def test_a_state_that_differs_between_ranks_is_named(first, second):
    (line,) = warned([torch.ones(2), first], [torch.ones(2), second])
    assert line.startswith("global_rank 1 has other tensors than global_rank 0 in the state of Average, and")
    assert line.endswith("; if they are of a logged metric, log it with sync_dist=True."), "as ModelCheckpoint's scores"


@pytest.mark.parametrize("at", ["cpu", "meta"])
def test_equal_states_are_not_and_little_is_sent(sent, at):
    kept = [
        torch.tensor([float("nan"), 1.0], requires_grad=True),
        torch.empty(0),
        torch.eye(2).to_sparse(),
        {"a": (1,)},
    ]
    kept += [torch.ones(2, device=at), *(torch.rand(100) for _ in range(100))]
    assert warned(kept, kept) == [], "only tensors are compared"
    assert [len(pickle.dumps(each)) < 100 for each in sent] == [True, True]


@pytest.mark.usefixtures("sent")
@pytest.mark.parametrize(("state", "number"), [({"loss": [1.0]}, 0), (torch.ones(2), 1)], ids=str)
def test_a_state_of_global_rank_0_alone_differs_if_it_holds_tensors(state, number):
    assert len(warned(state, None)) == number, "without tensors, as that of TrainingMonitor"
