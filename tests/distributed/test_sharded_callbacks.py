"""Callbacks that a strategy with parts of the weights cannot serve, by the names of Lightning's classes."""

from types import SimpleNamespace

import pytest
import torch

from lightning_sm._distributed.sharded_callbacks import check_callbacks
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
