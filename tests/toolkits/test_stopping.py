"""A job that is stopped: with the entry point that ``launch`` sends its training ends in time."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.helpers.rehearsal import needs

from .running import rehearse

pytestmark = pytest.mark.full

_PROGRAM = Path(__file__).parents[1] / "processes" / "train_until_stopped.py"
_TORCHRUN = ("--processes", 2, "--distribution", "torch_distributed")
_MPI = ("--hosts", 2, "--processes", 1, "--distribution", "mpi")
# AWS's images are started by a script of theirs.
_DLC = ("--image", "pytorch-2.8-cpu", "--env", f"PATH={Path(__file__).parent / 'standin_bin'}")


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param((*_DLC, *_TORCHRUN), id="dlc-torchrun", marks=needs("netns", torch=True)),
        pytest.param(_MPI, id="toolkit-mpi", marks=needs("netns", torch=True, mpi=True)),
    ],
)
def test_with_the_entry_point_a_stopped_job_saves_and_exports(tmp_path, launch):
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(_PROGRAM, source)
    options = (*launch, "--checkpoint-dir", tmp_path / "checkpoints", "--stop-at", "at step 20")
    done = rehearse(source, tmp_path / "out", *options, _PROGRAM.name, "--workers", "1", exit_code=143)
    assert done.summary["status"] == "Stopped"
    assert {host["exit_code"] for host in done.summary["hosts"]} == {143}
    assert "forwarding SIGTERM to" in done.log
    assert done.log.count("SIGTERM received: stopping after step") == 1
    # What a restart would find. Saves are due every ten minutes, and when the job is stopped.
    (saved,) = (tmp_path / "checkpoints").glob("*/fit-0/step-*.ckpt")
    with tarfile.open(tmp_path / "out" / "model.tar.gz") as archive:
        assert "model.pt" in archive.getnames()
        steps = json.load(archive.extractfile("model.json"))["global_step"]
    assert saved.name == f"step-{steps}.ckpt"
    assert steps >= 20
