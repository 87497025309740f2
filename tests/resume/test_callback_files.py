"""Checkpoints of the project's own callbacks in fits that are interrupted; two attempts write what one writes."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny import tiny_model
from tests.resume.job import EPOCH, Interrupted, Job, pl


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "checkpoints")


@pytest.fixture
def whole(tmp_path):
    """A job that nothing interrupts."""
    return Job(tmp_path / "whole")


def names(job, folder="own"):
    return sorted(path.name for path in (job.directory / folder).iterdir())


def fit(job, after=None, name="{step}", folder="own", model=None, accumulate=1, **arguments):
    """Fit two epochs with a checkpoint after each fourth step, and a link or copy of the last one."""
    arguments = {"every_n_train_steps": 4, "save_top_k": -1, "save_last": True, **arguments}
    own = pl.callbacks.ModelCheckpoint(job.directory / folder, name, **arguments)
    more = {"epochs": 2, "callbacks": [own], "enable_checkpointing": True, "model": model}
    more["accumulate_grad_batches"] = accumulate
    job.fit(**more) if after is None else job.interrupted(after, **more)
    return own


WHOLE = ["last.ckpt", *(f"step={step}.ckpt" for step in (12, 16, 4, 8))]


@pytest.mark.parametrize(("after", "save_last"), [(4, True), (EPOCH + 4, True), (EPOCH + 4, "link")])
def test_what_was_written_after_the_last_save_is_written_again_under_its_name(job, after, save_last):
    """The fourth batch: the callback has written, and the fit has not been saved after that step."""
    fit(job, after, save_last=save_last)
    own = fit(job, save_last=save_last)
    assert names(job) == WHOLE
    assert own.best_model_path.endswith("step=16.ckpt")
    assert own.last_model_path.endswith("last.ckpt")


def test_a_slash_in_a_name_makes_folders(job):
    """As in those of metrics, such as ``val/loss``."""
    for after in (4, 9, None):
        fit(job, after, name="{epoch}-val/{step}")
    found = [path.relative_to(job.directory / "own").as_posix() for path in job.directory.glob("own/**/*.ckpt")]
    assert sorted(found) == [
        *(f"epoch={epoch}-val/step={EPOCH * epoch + step}.ckpt" for epoch in (0, 1) for step in (4, 8)),
        "last.ckpt",
    ]


def test_a_file_of_somebody_else_stays(job):
    (job.directory / "own").mkdir(parents=True)
    for name in ("step=4.ckpt", "last.ckpt"):
        (job.directory / "own" / name).write_text("of somebody else")
    fit(job, 4)
    expected = [name.replace("last", "last-v1").replace("=4", "=4-v1") for name in WHOLE]
    assert names(job) == sorted(["last.ckpt", "step=4.ckpt", "step=4-v1.ckpt", "last-v1.ckpt"])
    fit(job)
    assert names(job) == sorted([*expected, "last.ckpt", "step=4.ckpt"])
    assert (job.directory / "own" / "step=4.ckpt").read_text() == "of somebody else"


def test_what_the_callback_knows_of_its_own_is_not_replaced(job, whole):
    """Two best of one name: the second is a version of it, as in a fit that nothing interrupts."""
    arguments = {"name": "best", "monitor": "step", "mode": "max", "save_top_k": 2, "save_last": False}
    fit(whole, **arguments)
    for after in (5, 5, 5):
        fit(job, after, **arguments)
    fit(job, **arguments)
    assert names(job) == names(whole)


def test_the_checkpoint_directory_may_be_another_one_in_a_restart(job):
    fit(job, 4)
    moved = Job(job.directory.parent / "moved")
    shutil.move(job.directory, moved.directory)
    fit(moved)
    assert names(moved) == WHOLE


@pytest.mark.parametrize("way", ["absolute", "link", "relative"])
def test_a_directory_that_is_named_by_the_time_of_the_start(tmp_path, monkeypatch, way):
    """Lightning gives callbacks the absolute path without links."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    job = Job({"absolute": tmp_path / "disk", "link": tmp_path / "link", "relative": Path("disk")}[way])
    fit(job, 5, folder="run-1")
    own = fit(job, folder="run-2")
    assert names(job, "run-1") == WHOLE
    assert own.best_model_path == str(tmp_path / "disk" / "run-1" / "step=16.ckpt")
    assert not (job.directory / "run-2").exists()


def test_after_the_end_a_fit_takes_free_names_again(job):
    own = fit(job)
    assert "file_exists" not in vars(own)
    fit(job)
    assert (job.steps, names(job)) == (0, WHOLE)


def steps_of(job):
    """The step of each checkpoint, by its name."""
    found = (job.directory / "own").iterdir()
    return {path.name: torch.load(path, weights_only=False)["global_step"] for path in found}


@pytest.mark.parametrize("after", [EPOCH + 3, 2 * EPOCH])
def test_the_last_checkpoint_stays_that_of_the_last_good_epoch(job, whole, after):
    """Lightning writes it beside each of the best, else when the training ends."""
    arguments = {"every_n_train_steps": None, "monitor": "step", "mode": "min", "save_top_k": 1}
    fit(whole, **arguments)
    fit(job, after, **arguments)
    fit(job, **arguments)
    assert steps_of(job) == steps_of(whole)
    assert steps_of(whole)[f"step={EPOCH}.ckpt"] == EPOCH


def test_a_checkpoint_that_waits_for_a_validation_is_written_after_it(job, whole):
    """Lightning knows that a step was due only until then."""
    arguments = {"every_n_train_steps": EPOCH, "monitor": "val_loss", "save_last": False}
    arguments["save_on_train_epoch_end"] = False
    model = tiny_model(pl)

    def interrupt():
        if model.trainer.global_step == 2 * EPOCH:
            raise Interrupted

    model.on_validation_start = interrupt
    with pytest.raises(Interrupted):
        fit(job, model=model, **arguments)
    fit(job, **arguments)
    fit(whole, **arguments)
    assert (job.steps, names(job)) == (0, names(whole))


def test_a_step_that_is_accumulated_is_written_once(job):
    arguments = {"every_n_train_steps": 2, "monitor": "step", "mode": "min", "save_top_k": 2, "save_last": False}
    fit(job, 5, accumulate=2, **arguments)
    fit(job, accumulate=2, **arguments)
    assert names(job) == ["step=2.ckpt", "step=4.ckpt"]
