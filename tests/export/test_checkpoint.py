import pytest
import torch

from lightning_sm._export import ExportPlan, ModelSummary, load_file, make_source, write_model
from lightning_sm.errors import ExportError
from tests.export.formats import export
from tests.projects.nets import Net


def test_the_last_checkpoint(tmp_path):
    model = Net()
    path, about = export(tmp_path, "checkpoint", model)
    loaded = load_file(path, weights_only=False)
    assert loaded["epoch"] == 2
    assert torch.equal(loaded["state_dict"]["head.weight"], model.head.weight)
    assert about["comparison"] == {"compared": "tensors", "tensors": len(model.state_dict())}
    assert about["example"] is None


def test_the_best_checkpoint_is_the_very_file(tmp_path):
    best = tmp_path / "best.ckpt"
    torch.save({"state_dict": Net().state_dict(), "callbacks": {"x": 1}}, best)
    plan = ExportPlan("checkpoint")
    source = make_source(plan, None, {}, str(best))
    write_model(str(tmp_path / "model"), source, ModelSummary("m.Model"), plan=plan)
    assert (tmp_path / "model" / "model.ckpt").read_bytes() == best.read_bytes()


def test_a_best_checkpoint_that_is_damaged(tmp_path):
    best = tmp_path / "best.ckpt"
    best.write_bytes(b"no checkpoint")
    with pytest.raises(ExportError, match="could not be made ready for its export as checkpoint"):
        make_source(ExportPlan("checkpoint"), None, {}, str(best))
