import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, make_source
from lightning_sm._export.source import copy_module, prepare_module
from lightning_sm.errors import ExportError
from tests.projects.nets import Net


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with torch 2.0")
def test_compiled_submodule_is_exported_uncompiled():
    model = Net()
    model.encoder = torch.compile(model.encoder, backend="eager")
    ready = prepare_module(copy_module(model), model.state_dict(), None)
    assert type(ready.encoder) is torch.nn.Sequential
    assert type(prepare_module(copy_module(model), model.state_dict(), "encoder")) is torch.nn.Sequential
    assert type(model.encoder) is not torch.nn.Sequential


def test_a_best_checkpoint_that_is_damaged(tmp_path):
    best = tmp_path / "best.ckpt"
    best.write_bytes(b"no checkpoint")
    with pytest.raises(ExportError, match="could not be prepared for export as checkpoint"):
        make_source(ExportPlan(ExportFormat.CHECKPOINT), None, {}, str(best))
