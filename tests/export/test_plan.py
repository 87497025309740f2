import importlib.util

import pytest

from lightning_sm._export import ExportPlan
from lightning_sm.errors import ExportError


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
