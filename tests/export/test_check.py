import pytest
import torch

from lightning_sm._export import ExportPlan, check_model
from lightning_sm.errors import ExportError
from tests.projects.nets import Headless, Net


def check(plan, model, hparams=None, config=None, **situation):
    check_model(plan, model, hparams, config, **{"sharded": False, "saved_by_strategy": False, **situation})


class Demanding(Net):
    def __init__(self, vocabulary, *, depth, **options):
        super().__init__()


@pytest.mark.parametrize("submodule", [None, "encoder", "encoder.0"])
@pytest.mark.parametrize("name", ["state_dict", "torchscript"])
def test_what_can_be_exported(name, submodule):
    check(ExportPlan(name, submodule=submodule), Net())


def test_a_part_that_does_not_exist():
    message = (
        "export_submodule is backbone, and Net has no such part. HINT: Set it to one of: encoder, encoder.0, .*head"
    )
    with pytest.raises(ExportError, match=message):
        check(ExportPlan(submodule="backbone"), Net())


def test_nothing_to_run():
    check(ExportPlan("state_dict"), Headless())
    with pytest.raises(ExportError, match=r"onnx, which runs forward\(\), and Headless has none"):
        check(ExportPlan("onnx"), Headless())
    check(ExportPlan("onnx", submodule="encoder"), Headless())
    model = Net()
    model.heads = torch.nn.ModuleDict()
    with pytest.raises(ExportError, match="ModuleDict has none"):
        check(ExportPlan("onnx", submodule="heads"), model)


def test_checkpoints_in_a_form_of_their_own():
    with pytest.raises(
        ExportError, match=r"saves checkpoints in a form of its own. HINT: Set sagemaker.export to state"
    ):
        check(ExportPlan("checkpoint"), Net(), saved_by_strategy=True)
    check(ExportPlan("state_dict"), Net(), saved_by_strategy=True, sharded=True)


@pytest.mark.parametrize(
    ("plan", "situation"),
    [(ExportPlan("onnx"), {"sharded": True}), (ExportPlan("state_dict", serving=True), {})],
)
def test_a_model_that_must_be_made_anew(plan, situation):
    model = Demanding("v", depth=2)
    with pytest.raises(ExportError, match=r"takes vocabulary, depth, and .* HINT: Call self.save_hyperparameters"):
        check(plan, model, **situation)
    with pytest.raises(ExportError, match="takes depth, and"):
        check(plan, model, {"vocabulary": "v"}, **situation)
    check(plan, model, {"vocabulary": "v", "depth": 2}, **situation)
    check(plan, model, None, "model:\n  vocabulary: v\n", **situation)
    with pytest.raises(ExportError, match="takes vocabulary, depth"):
        check(plan, model, None, "trainer: {}\n", **situation)
