"""Callbacks that a strategy with parts of the weights cannot serve, by the names of Lightning's classes."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._distributed import sharded_callbacks
from lightning_sm._distributed.sharded_callbacks import check_callbacks, warn_of_own_states
from lightning_sm.errors import StrategyUnavailableError
from tests.projects.container import log_lines


def named(name, **attributes):
    """An object whose class has the name of one of Lightning's."""
    return type(name, (), attributes)()


def check(strategy, *callbacks, world_size=2, model=None, **attributes):
    trainer = SimpleNamespace(
        strategy=named(strategy, **attributes), callbacks=list(callbacks), world_size=world_size, is_global_zero=True
    )
    with log_lines() as lines:
        check_callbacks(trainer, model or torch.nn.Linear(1, 1))
    return lines


@pytest.mark.parametrize("name", ["WeightAveraging", "StochasticWeightAveraging"])
@pytest.mark.parametrize(
    ("strategy", "attributes"),
    [("FSDPStrategy", {}), ("ModelParallelStrategy", {}), ("DeepSpeedStrategy", {"zero_stage_3": True})],
)
def test_averages_of_whole_weights_are_refused_where_there_are_parts(strategy, attributes, name):
    average = type("Own", (type(named(name)),), {})()
    text = f"Own averages whole weights, and with {strategy} each"
    with pytest.raises(StrategyUnavailableError, match=text) as caught:
        check(strategy, average, **attributes)
    assert "HINT: Keep an AveragedModel as an attribute of the LightningModule" in str(caught.value)


def test_finetuning_is_refused_with_fsdp2():
    with pytest.raises(StrategyUnavailableError, match="BaseFinetuning cannot unfreeze layers with ModelParallel"):
        check("ModelParallelStrategy", named("BaseFinetuning"))


def test_nothing_else_is():
    average, finetuning = named("WeightAveraging"), named("BaseFinetuning")
    assert check("DDPStrategy", average, finetuning) == []
    assert check("DeepSpeedStrategy", average, zero_stage_3=False) == []
    assert check("FSDPStrategy", finetuning, named("EarlyStopping")) == []
    assert check("FSDPStrategy", average, world_size=1) == [], "one process has the whole weights"


def test_a_model_that_would_average_nothing_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.add_module("ema", torch.optim.swa_utils.AveragedModel(model[0]))
    assert check("DeepSpeedStrategy", model=model, zero_stage_3=False) == []
    (line,) = check("DeepSpeedStrategy", model=model, zero_stage_3=True)
    assert line.startswith("ema of the model is an AveragedModel. With DeepSpeed stage 3 weights are empty")


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
