"""What the archive holds for an inference container, run by the real toolkits where they are installed:
``pip install sagemaker-inference sagemaker-pytorch-inference``."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_sm._export import ExportFormat
from lightning_sm._export.inference import build_model, import_object, model_fn
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import callback_class
from tests.export.formats import SAMPLES, needs, prediction
from tests.projects.container import Container
from tests.projects.nets import loader

PL = Namespace("pytorch_lightning")


def archive(directory, model, **options):
    needs(options["export"])
    export = callback_class(PL, "ModelExport")(str(directory), export_serving=True, **options)
    trainer = PL.module().Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=str(directory.parent / "root"), callbacks=[export], enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(model, loader())
    return str(directory)


@pytest.mark.parametrize("name", sorted(each.value for each in ExportFormat))
def test_model_fn_loads_each_format(tmp_path, served, name):
    if name == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime is not installed")
    model = served(width=3)
    loaded = model_fn(archive(tmp_path / "model", model, export=name))
    assert torch.allclose(prediction(loaded), prediction(model), atol=1e-6)


@pytest.mark.parametrize("name", ["state_dict", "safetensors"])
def test_submodule_is_loaded(tmp_path, served, name):
    model = served(width=3)
    directory = archive(tmp_path / "model", model, export=name, export_submodule="layers.2")
    loaded = model_fn(directory)
    assert isinstance(loaded, torch.nn.Linear)
    assert torch.equal(loaded.weight, model.layers[2].weight)


def test_a_class_within_a_class_is_loaded(tmp_path, served):
    from served_net import Zoo

    model = Zoo.Inner.Net(width=3)
    assert isinstance(model_fn(archive(tmp_path / "model", model, export="state_dict")), Zoo.Inner.Net)


@pytest.mark.parametrize(
    ("path", "error"), [("gone.net.Net", "No module named 'gone'"), ("served_net.Gone", "has no attribute 'Gone'")]
)
def test_an_object_that_is_not_there(served, path, error):
    with pytest.raises((ImportError, AttributeError), match=error):
        import_object(path)


def test_model_from_a_config_without_hparams(opt_ml, monkeypatch):
    """The command line made it, and it saved no hyperparameters."""
    container = Container(opt_ml, monkeypatch)
    values = {"sagemaker.export_serving": True, "model.lr": 0.25}
    cli = container.hyperparameters(values).cli(run=True)
    assert container.summary["hparams"] is None
    loaded = model_fn(str(container.model))
    assert loaded.given["lr"] == 0.25
    assert torch.equal(loaded.layer.weight, cli.model.layer.weight)
    assert (container.model / "code" / "tiny_model.py").exists()


def test_saved_instantiator_is_used():
    made = build_model(dict, {"_instantiator": "tests.export.test_inference.instantiator", "width": 3})
    assert made == {"cls": dict, "width": 3}


def test_hparams_that_the_constructor_rejects_are_dropped():
    hparams = {"in_features": 2, "out_features": 3, "notes": "saved besides"}
    assert build_model(torch.nn.Linear, hparams).weight.shape == (3, 2)


def instantiator(cls, hparams):
    return {"cls": cls, **hparams}


def test_inference_toolkit_serves_each_format(tmp_path, served):
    for package in ("sagemaker_inference", "sagemaker_pytorch_serving_container"):
        pytest.importorskip(package, reason="pip install sagemaker-inference sagemaker-pytorch-inference")
    model = served(width=3)
    names = [name for name in sorted(each.value for each in ExportFormat) if name != "onnx"]
    directories = [archive(tmp_path / name, model, export=name) for name in names]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = str(Path(__file__).with_name("ask_for_predictions.py"))
    ran = subprocess.run(
        [sys.executable, script, json.dumps(SAMPLES.tolist()), *directories],
        env=environ, cwd=str(tmp_path), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert len(answers) == len(names)
    for name, answer in zip(names, answers):
        # The model was trained on after each export, so only the last archive has the weights that it has now.
        assert torch.tensor(answer["json"]).shape == (3, 2), name
        assert torch.allclose(torch.tensor(answer["json"]), torch.tensor(answer["npy"]), atol=1e-6)
    assert torch.allclose(torch.tensor(answers[-1]["json"]), prediction(model), atol=1e-6)
