"""``latest_checkpoint`` in one process: which of the checkpoints in the job's directory it finds."""

import json
import os
from pathlib import Path

import pytest
import torch

import lightning_sm
from lightning_sm._lightning import choose_fabric
from lightning_sm._resume import fabric as saves
from lightning_sm._resume.storage import Storage
from lightning_sm.errors import CheckpointError
from tests.helpers.checkpoint_files import damage


@pytest.fixture
def job(opt_ml, in_environ):
    """The job's checkpoint directory."""
    (opt_ml.base / "checkpoints").mkdir()
    in_environ(opt_ml.host("algo-1").environ(TRAINING_JOB_NAME="job-1"))
    return opt_ml.base / "checkpoints"


@pytest.fixture
def start(job):
    """Return a function that starts the program: its Fabric, and what it goes on from, relative to the directory."""

    def run():
        fabric = choose_fabric().module().Fabric(accelerator="cpu", devices=1)
        path = lightning_sm.latest_checkpoint(fabric)
        return fabric, path and os.path.relpath(path, job)

    return run


def save(fabric, path, step):
    fabric.save(path, {"step": step, "weights": torch.full((100,), float(step))})


def test_the_newest_by_the_order_of_the_saves(job, start):
    fabric, path = start()
    assert path is None
    for step, name in enumerate(["z.ckpt", "run/step-10.ckpt", "step-9.ckpt"]):
        save(fabric, job / name, step)
    (job / "other.ckpt").write_bytes((job / "z.ckpt").read_bytes())
    os.utime(job / "z.ckpt", (2e9, 2e9))  # as the service's copy of an old file
    fabric, path = start()
    assert path == "step-9.ckpt"
    assert fabric.load(job / path)["step"] == 2
    damage(job / path, "truncated")
    assert start()[1] == "run/step-10.ckpt"
    assert not list(job.rglob(".*"))


def test_a_program_killed_in_a_save_has_the_one_before(job, start, monkeypatch):
    fabric, _ = start()
    save(fabric, job / "last.ckpt", 1)

    def killed(*arguments):
        raise KeyboardInterrupt

    for what in ("write", "_rename"):
        with monkeypatch.context() as patch:
            patch.setattr(Storage if what == "write" else saves, what, killed)
            with pytest.raises(KeyboardInterrupt):
                save(fabric, job / "last.ckpt", 2)
        fabric, path = start()
        assert fabric.load(job / path)["step"] == 1
    save(fabric, job / "last.ckpt", 3)
    fabric, path = start()
    assert fabric.load(job / path)["step"] == 3


def test_a_list_that_arrived_in_s3_before_the_file(job, start):
    fabric, _ = start()
    for step in range(30):
        save(fabric, job / "last.ckpt", step)
        if step == 20:
            earlier = (job / "last.ckpt").read_bytes()
    assert len(json.loads((job / "fabric.json").read_text())) == 20
    (job / "last.ckpt").write_bytes(earlier)
    fabric, path = start()
    assert fabric.load(job / path)["step"] == 20


def test_a_folder_is_whole_or_not_used(job, start):
    fabric, _ = start()

    def write_shards(path, state):
        Path(path).mkdir()
        for shard in range(2):
            (Path(path) / f"__{shard}_0.distcp").write_text(f"{state} {shard}")

    vars(fabric)["save"].original = write_shards
    for step in (1, 2):
        fabric.save(job / f"step-{step}", step)
    assert start()[1] == "step-2"
    (job / "step-2" / "__1_0.distcp").unlink()
    assert start()[1] == "step-1"


def test_other_programs_other_jobs_and_other_directories(job, start, monkeypatch, tmp_path):
    fabric, _ = start()
    save(fabric, tmp_path / "elsewhere.ckpt", 0)
    assert start()[1] is None
    # A worker of pytest-xdist runs no file.
    monkeypatch.setattr("__main__.__file__", "train.py", raising=False)
    save(start()[0], job / "a.ckpt", 1)
    assert start()[1] == "a.ckpt"
    monkeypatch.setattr("sys.argv", ["program", "--lr", "0.1"])
    assert start()[1] is None
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-2")
    with pytest.raises(
        CheckpointError, match=r"was written by the job job-1, and this is the job job-2.*checkpoint_s3"
    ):
        start()


def test_a_list_that_cannot_be_read_is_named(job, start, lines):
    (job / "fabric.json").write_text('[{"name": "a.ckpt"}]')
    assert start()[1] is None
    assert [line for line in lines if line.startswith(f"Skipped fabric.json in {job}: KeyError")]
    save(start()[0], job / "b.ckpt", 1)
    assert start()[1] == "b.ckpt"


def test_outside_a_job_nothing_is_listed(tmp_path):
    fabric = choose_fabric().module().Fabric(accelerator="cpu", devices=1)
    assert lightning_sm.latest_checkpoint(fabric) is None
    save(fabric, tmp_path / "a.ckpt", 1)
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_it_is_for_processes_that_have_been_launched(job):
    fabric = choose_fabric().module().Fabric(accelerator="cpu", devices=2, strategy="ddp")
    with pytest.raises(CheckpointError, match=r"HINT: Call fabric.launch\(\) first"):
        lightning_sm.latest_checkpoint(fabric)
