import copy

import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, make_source
from lightning_sm._export.source import copy_module, prepare_module
from lightning_sm.errors import ExportError
from tests.projects.nets import Net, Tied


def run_once(model):
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    model.losses.append(loss)
    return model


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_copy_has_equal_weights_and_no_gradients(model_class):
    model = run_once(model_class())
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)  # the loss that was kept has a graph
    copied = copy_module(model)
    ready = prepare_module(copied, model.state_dict(), None)
    model.eval()
    samples = torch.randn(3, 4)
    assert torch.equal(ready(samples), model(samples))
    assert all(parameter.grad is None for parameter in ready.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not torch.equal(ready(samples), model(samples))


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
