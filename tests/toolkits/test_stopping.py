"""A job that is stopped: with the entry point that ``launch`` sends its training ends in time."""

import functools
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


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copy(_PROGRAM, folder)
    return folder


@pytest.fixture
def run(tmp_path, source):
    """Return a function that rehearses a job."""
    return functools.partial(rehearse, source, tmp_path / "out", "--checkpoint-dir", tmp_path / "checkpoints")


def saves(folder):
    """The saves that a restart of the job would find. They are due every ten minutes, and when it is stopped."""
    return list((folder / "checkpoints").glob("*/fit-0/step-*.ckpt"))


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param((*_DLC, *_TORCHRUN), id="dlc-torchrun", marks=needs("netns", torch=True)),
        pytest.param(_MPI, id="toolkit-mpi", marks=needs("netns", torch=True, mpi=True)),
    ],
)
def test_with_the_entry_point_a_stopped_job_saves_and_exports(run, tmp_path, launch):
    done = run(*launch, "--stop-at", "at step 20", _PROGRAM.name, "--workers", "1")
    assert done.exit_code == 143, done.log[-8000:]
    assert done.summary["status"] == "Stopped"
    assert {host["exit_code"] for host in done.summary["hosts"]} == {143}
    assert "forwarding SIGTERM to" in done.log
    assert done.log.count("SIGTERM received: stopping after step") == 1
    (saved,) = saves(tmp_path)
    with tarfile.open(tmp_path / "out" / "model.tar.gz") as archive:
        assert "model.pt" in archive.getnames()
        steps = json.load(archive.extractfile("model.json"))["global_step"]
    assert saved.name == f"step-{steps}.ckpt"
    assert steps >= 20
