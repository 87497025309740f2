import importlib.util

import pytest
import torch

from lightning_sm._export import _onnx
from tests.export.formats import SAMPLES, export, prediction
from tests.projects.nets import Net


class Pair(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return {"hidden": hidden, "head": self.head(hidden)}


def run(path, samples):
    call, _ = _onnx._engine(path)
    return call(samples)


@pytest.mark.parametrize("model_class", [Net, Pair])
def test_the_file_predicts_as_the_model_does(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "onnx", model)
    expected = prediction(model)
    expected = list(expected.values()) if isinstance(expected, dict) else [expected]
    for samples in (SAMPLES, SAMPLES[:2]):
        for found, right in zip(run(path, samples), expected):
            assert torch.allclose(found, right[: len(samples)], atol=1e-5)
    assert about["comparison"]["compared"] == "output"
    assert about["comparison"]["any_batch_size"] is True
    assert about["details"]["engine"] in ("onnxruntime", "onnx.reference")


def test_where_nothing_can_run_the_file_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(_onnx, "_engine", lambda path: None)
    _, about = export(tmp_path, "onnx", Net())
    assert about["comparison"]["compared"] is None
    assert "onnxruntime is not installed" in about["comparison"]["reason"]


def test_the_engine_of_onnx_itself_is_the_second_choice(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    _, about = export(tmp_path, "onnx", Net())
    if about["comparison"]["compared"] is None:
        pytest.skip(about["comparison"]["reason"])
    assert about["details"]["engine"] == "onnx.reference"
