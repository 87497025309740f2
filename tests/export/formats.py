"""What the tests of the formats share."""

import json

import pytest
import torch

from lightning_sm._export import Example, ExportFormat, ExportPlan, ModelSummary, make_source, write_model
from lightning_sm.errors import ExportError

__all__ = ["SAMPLES", "export", "needs", "prediction"]

SAMPLES = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def needs(name):
    """Skip where a format cannot be written."""
    try:
        ExportFormat(name).check_available()
    except ExportError as error:
        pytest.skip(str(error))


def export(tmp_path, name, model, example=SAMPLES, submodule=None):
    """Export a model, and return the file and what model.json says."""
    needs(name)
    plan = ExportPlan(ExportFormat(name), submodule=submodule)
    last = {"state_dict": model.state_dict(), "epoch": 2}
    source = make_source(plan, model, last, None, example=Example((example,), "first batch"))
    path = write_model(str(tmp_path), source, ModelSummary("m.Model"), plan=plan)
    about = json.loads((tmp_path / "model.json").read_text())
    assert (about["format"], about["submodule"]) == (name, submodule)
    assert path == str(tmp_path / about["file"]) == str(tmp_path / ExportFormat(name).file)
    return path, about


def prediction(model, samples=SAMPLES):
    """What a model returns when it does not train."""
    with torch.no_grad():
        return model.eval()(samples)
