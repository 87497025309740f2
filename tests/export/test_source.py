import re

import pytest
import torch

from lightning_sm._export import ExportPlan, make_source
from lightning_sm._export.source import copy_module, prepare_module
from tests.helpers.checkpoint_files import Extra
from tests.projects.nets import Net


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with torch 2.0")
def test_compiled_submodule_is_exported_uncompiled():
    model = Net()
    model.encoder = torch.compile(model.encoder, backend="eager")
    ready = prepare_module(copy_module(model), model.state_dict(), None)
    assert type(ready.encoder) is torch.nn.Sequential
    assert type(prepare_module(copy_module(model), model.state_dict(), "encoder")) is torch.nn.Sequential
    assert type(model.encoder) is not torch.nn.Sequential


@pytest.mark.parametrize(
    ("write", "weights_only", "problem"),
    [
        (lambda best: best.write_bytes(b"no checkpoint"), False, r" \(UnpicklingError: "),
        # As a CheckpointIO of the project that writes the weights to a file of their own.
        (lambda best: torch.save({"epoch": 1}, best), False, r" \(it holds no state_dict\)"),
        (
            lambda best: torch.save({"state_dict": Extra()}, best),
            True,
            " with weights_only=True, which sagemaker.resume_",
        ),
    ],
)
def test_a_best_checkpoint_that_cannot_be_read(tmp_path, caplog, write, weights_only, problem):
    best, last = tmp_path / "best.ckpt", {"state_dict": Net().state_dict()}
    write(best)
    before = Extra.loaded
    source = make_source(ExportPlan(), None, last, str(best), weights_only=weights_only)
    assert source.state_dict == last["state_dict"] != {}
    assert not source.is_best
    assert Extra.loaded == before
    (line,) = caplog.messages
    assert re.match(rf"Best checkpoint {best} cannot be read{problem}", line), line
    assert line.endswith("; exporting the last weights instead")
