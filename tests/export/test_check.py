import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, ExportWeights, check_model
from lightning_sm.errors import ExportError
from tests.projects.nets import Net


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
