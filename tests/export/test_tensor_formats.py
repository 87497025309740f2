import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, ModelSummary, load_file, make_source, write_model
from lightning_sm._export.formats import drop_shared_tensors
from lightning_sm._export.inference import read_state_dict
from tests.export.formats import export
from tests.projects.nets import Net, Tied


def test_best_checkpoint_at_a_url(tmp_path):
    import fsspec

    url, saved = "memory://export/best.ckpt", {"state_dict": Net().state_dict(), "callbacks": {"x": 1}}
    with fsspec.open(url, "wb") as file:
        torch.save(saved, file)
    plan = ExportPlan(ExportFormat.CHECKPOINT)
    source = make_source(plan, None, {}, url)
    path = write_model(str(tmp_path / "model"), source, ModelSummary("m.Model"), plan=plan)
    written = load_file(path, weights_only=True)
    assert written["callbacks"] == {"x": 1}
    assert all(torch.equal(written["state_dict"][name], value) for name, value in saved["state_dict"].items())


def test_shared_tensors_are_written_once():
    base = torch.arange(6.0)
    kept, shared = drop_shared_tensors({"a": base, "b": base, "t": base.view(2, 3).t(), "empty": base[:0]})
    assert shared == {"b": "a"}
    assert set(kept) == {"a", "t", "empty"}
    assert all(value.is_contiguous() for value in kept.values())


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_safetensors_load_into_a_new_model(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "safetensors", model)
    assert about["comparison"] == {"compared": "tensors", "tensors": len(model.state_dict())}
    assert about["details"] == ({"shared": {"decoder.weight": "encoder.0.weight"}} if model_class is Tied else {})
    fresh = model_class()
    fresh.load_state_dict(read_state_dict(path, "safetensors"))
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())
    from safetensors.torch import load_model

    again = model_class()
    load_model(again, path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_tensor_called_as_safetensors_calls_its_format(tmp_path):
    pytest.importorskip("safetensors", reason="pip install safetensors")
    from safetensors.torch import save_file

    save_file({"pt": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert list(read_state_dict(tmp_path / "model.safetensors", "safetensors")) == ["pt"]
