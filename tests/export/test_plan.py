import importlib.util

import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, ExportWeights, check_model
from lightning_sm.errors import ExportError
from tests.projects.nets import Net


@pytest.mark.parametrize("export", [False, "false", "False"])
def test_nothing_is_exported(export):
    assert ExportPlan.parse(export) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"export": "onxx"}, r"sagemaker.export is 'onxx'. HINT: Set it to state_dict, .*safetensors or false\."),
        ({"export": None}, "sagemaker.export is None"),
        ({"weights": "first"}, "sagemaker.export_weights is 'first'. HINT: Set it to best or last"),
        ({"export": "checkpoint", "submodule": "a"}, "export_submodule is a, but a checkpoint is of the whole model"),
        ({"example_input": []}, r"sagemaker.export_example_input is \[\]"),
        ({"example_input": [1, 0]}, r"sagemaker.export_example_input is \[1, 0\]. HINT: .*\[1, 3, 32, 32\]"),
        ({"example_input": ["1"]}, "sagemaker.export_example_input is"),
        ({"example_input": [True]}, "sagemaker.export_example_input is"),
        ({"example_input": 5}, "sagemaker.export_example_input is 5. HINT: "),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ExportError, match=message):
        ExportPlan.parse(**options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("safetensors", "safetensors cannot be imported. HINT: Add safetensors to the requirements.txt"),
        ("onnx", "onnx.* cannot be imported. HINT: Add onnx.* to the requirements.txt"),
        ("exported_program", r"torch\.export cannot be imported\. HINT: Choose an image with torch 2\.1"),
    ],
)
def test_what_is_missing(monkeypatch, name, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ExportError, match=message):
        ExportPlan.parse(name)


def check(plan, model, hparams=None, config=None, **situation):
    check_model(plan, model, hparams, config, **{"is_sharded": False, "saves_shards": False, **situation})


class Demanding(Net):
    def __init__(self, vocabulary, *, depth, **options):
        super().__init__()


def test_best_checkpoint_that_can_only_be_read_by_running_its_code():
    best, last = (ExportPlan(ExportFormat.CHECKPOINT, weights) for weights in ExportWeights)
    with pytest.raises(ExportError, match=r"will be sharded, .* HINT: Set sagemaker.export_weights to last"):
        check(best, Net(), saves_shards=True, is_sharded=True, weights_only=True)
    check(best, Net(), saves_shards=True, is_sharded=True)
    check(last, Net(), saves_shards=True, is_sharded=True, weights_only=True)


def test_extra_state_that_safetensors_cannot_hold():
    class Noted(torch.nn.Linear):
        def get_extra_state(self):
            return {"note": "plain"}

    model = Net()
    check(ExportPlan(ExportFormat.SAFETENSORS), model)
    model.head = Noted(5, 2)
    with pytest.raises(ExportError, match=r"tensors only: head._extra_state of its .* is a dict. HINT: .* state_dict"):
        check(ExportPlan(ExportFormat.SAFETENSORS), model)
    check(ExportPlan(ExportFormat.STATE_DICT), model)


@pytest.mark.parametrize(
    ("plan", "situation"),
    [(ExportPlan(ExportFormat.ONNX), {"is_sharded": True}), (ExportPlan(ExportFormat.STATE_DICT, serving=True), {})],
)
def test_model_that_must_be_rebuilt_needs_its_hparams(plan, situation):
    model = Demanding("v", depth=2)
    with pytest.raises(ExportError, match=r"takes vocabulary, depth, and .* HINT: Call self.save_hyperparameters"):
        check(plan, model, **situation)
    with pytest.raises(ExportError, match="takes depth, and"):
        check(plan, model, {"vocabulary": "v"}, **situation)
    check(plan, model, {"vocabulary": "v", "depth": 2}, **situation)
    check(plan, model, None, "model:\n  vocabulary: v\n", **situation)
    with pytest.raises(ExportError, match="takes vocabulary, depth"):
        check(plan, model, None, "trainer: {}\n", **situation)
