import pytest
import torch

from lightning_sm._export._safetensors import load_safetensors, without_twins
from lightning_sm.errors import ExportError
from tests.export.formats import export, needs
from tests.projects.nets import Net, Tied


def test_tensors_that_share_their_memory():
    base = torch.arange(6.0)
    kept, twins = without_twins({"a": base, "b": base, "part": base[:3], "t": base.view(2, 3).t(), "empty": base[:0]})
    assert twins == {"b": "a"}
    assert set(kept) == {"a", "part", "t", "empty"}
    assert len({value.data_ptr() for value in kept.values() if value.numel()}) == 3
    assert all(value.is_contiguous() for value in kept.values())


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_a_fresh_model_takes_the_file(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "safetensors", model)
    assert about["comparison"] == {"compared": "tensors", "tensors": len(model.state_dict())}
    assert about["details"] == ({"shared": {"decoder.weight": "encoder.0.weight"}} if model_class is Tied else {})
    fresh = model_class()
    fresh.load_state_dict(load_safetensors(path))
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())
    from safetensors.torch import load_model

    again = model_class()
    load_model(again, path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_what_is_no_tensor(tmp_path):
    needs("safetensors")
    with pytest.raises(
        ExportError, match=r"hold tensors only: extra of its state_dict.. is a dict. HINT: .* state_dict"
    ):
        without_twins({"extra": {}})
