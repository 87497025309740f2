"""``choose`` in one process; ``tests/processes`` has several."""

import json
from dataclasses import asdict

import pytest

from lightning_sm._resume.choose import ResumeMode, choose
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile
from lightning_sm._resume.series import Series
from lightning_sm._resume.transfers import LocalFiles
from lightning_sm.errors import CheckpointError
from tests.projects.container import log_lines
from tests.resume.one_process import DDPStrategy, trainer_with

PROGRAM, OTHER = "train-aaaaaa", "train-bbbbbb"
JOB, OTHER_JOB = ProgramIdentity("job-1", "train", {"lr": "1"}), ProgramIdentity("job-2", "train", {"lr": "2"})
MODEL = ModelIdentity("project.Model", {"width": "8"}, {"path": "a"})
TRAINER = trainer_with(DDPStrategy())


class Directory:
    """A checkpoint directory with made-up saves."""

    def __init__(self, root):
        self.root = root

    def series(self, program=PROGRAM, fit=0):
        return Series(str(self.root), program, fit)

    def save(self, step, number=None, program=PROGRAM, fit=0, job=JOB, model=MODEL, time=0.0, **more):
        folder = self.root / program / f"fit-{fit}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step}.ckpt"
        (folder / name).write_bytes(b"%d of %s" % (step, program.encode()))
        files = (SavedFile.read(str(folder), name),)
        record = CheckpointRecord(
            name, number or step, step, 0, "batch", 1, save_id=f"{program}-{step}", time=time, job=asdict(job),
            model=asdict(model), files=files, **more,
        )  # fmt: skip
        (folder / record.file_name).write_text(json.dumps(asdict(record)))
        return folder / name

    def choose(self, mode="auto", program=PROGRAM, fit=0, job=JOB, model=MODEL):
        with log_lines() as self.said:
            return choose(TRAINER, self.series(program, fit), job, model, ResumeMode(mode), LocalFiles())


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path)


def test_the_numbers_go_on_after_those_of_damaged_saves(directory):
    """The first new save would be taken for an old one otherwise."""
    for mode, program in (("auto", PROGRAM), ("always", PROGRAM), ("always", OTHER)):
        save = directory.save(5, number=7, program=program)
        save.write_bytes(save.read_bytes()[:-1])
        choice = directory.choose(mode)
        assert (choice.record, choice.newest) == (None, 7), (mode, program)
    directory.save(6, program=OTHER)
    assert directory.choose("always").newest == 7


def test_the_record_of_a_fit_belongs_to_what_is_continued(directory):
    directory.series().write(FitRecord(asdict(JOB), present=("a.ckpt",)))
    assert directory.choose().fit.present == ("a.ckpt",)
    directory.series(OTHER).write(FitRecord(asdict(JOB), present=("b.ckpt",)))
    directory.save(5, program=OTHER).write_bytes(b"")
    assert directory.choose("always").fit.present == ("a.ckpt",)
    directory.save(6, program=OTHER)
    assert directory.choose("always").fit.present == ("b.ckpt",)


@pytest.mark.parametrize("program", [PROGRAM, OTHER])
@pytest.mark.parametrize("has_only_fit", [False, True])
def test_another_job_is_an_error_that_says_what_to_do(directory, program, has_only_fit):
    if has_only_fit:
        directory.series(program).write(FitRecord(asdict(OTHER_JOB)))
    else:
        directory.save(5, program=program, job=OTHER_JOB)
    with pytest.raises(CheckpointError) as caught:
        directory.choose()
    message = str(caught.value)
    assert f"{directory.series(program).directory} was written by the job job-2, and this is the job job-1" in message
    assert "they differ in lr" in message
    assert "HINT: Give each job a checkpoint_s3_uri of its own" in message
    for anonymous in (ProgramIdentity(None, "train"), OTHER_JOB):
        assert directory.choose(job=anonymous).record is None or program == PROGRAM


def test_a_line_tells_of_saves_with_other_settings(directory):
    """As of a default that differs at each start: the program trains from scratch."""
    directory.save(5, program=OTHER, job=ProgramIdentity("job-1", "train", {"lr": "1", "run_id": "9"}))
    directory.save(5, program="train-cccccc", job=ProgramIdentity("job-1", "train", {"lr": "2", "run_id": "8"}))
    directory.save(5, program="test-cccccc", job=ProgramIdentity("job-1", "test", {"lr": "1", "run_id": "7"}))
    job = ProgramIdentity("job-1", "train", {"lr": "1", "run_id": "7"})
    assert directory.choose(job=job).record is None
    (line,) = directory.said
    assert line.startswith(f"{directory.root}/{OTHER} has saves of this program with other settings")
    assert "they differ in run_id. HINT: If it is the same training" in line
    directory.choose(job=job, fit=1)
    assert directory.said == []
    directory.save(1, job=job)
    directory.choose(job=job)
    assert directory.said == []


@pytest.mark.parametrize("mode", ["always", "require"])
def test_other_series_of_the_same_fit_are_used_where_that_is_asked_for(directory, mode):
    directory.save(50, program=OTHER, fit=1, job=OTHER_JOB)
    directory.save(5, program=OTHER, job=OTHER_JOB, time=1.0)
    directory.save(4, program="train-cccccc", job=OTHER_JOB, time=2.0)
    chosen = directory.choose(mode)
    assert (chosen.record.step, chosen.source) == (4, directory.series("train-cccccc").directory)
    assert chosen.series.directory == directory.series().directory
    directory.save(3, time=0.5)
    assert directory.choose(mode).record.step == 3
    assert directory.choose(mode, fit=1).record.step == 50
    assert directory.choose(mode, fit=2).record is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (ModelIdentity("project.Other", {"width": "8"}), r"it was one of project\.Model, and is one of project\.Other"),
        (ModelIdentity("project.Model", {"width": "9"}), "its hyperparameters differ in width"),
        (ModelIdentity("project.Model", {}), "its hyperparameters differ in width"),
        (ModelIdentity("project.Model", {"width": "8", "depth": "1"}), "its hyperparameters differ in depth"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "always", "require"])
def test_another_model_is_an_error(directory, model, reason, mode):
    directory.save(5, fit=1)
    with pytest.raises(CheckpointError, match=rf"Fit 1 of this program cannot continue from .*: {reason}\. HINT: A re"):
        directory.choose(mode, fit=1, model=model)


def test_other_texts_are_continued_with_a_line(directory):
    directory.save(5)
    model = ModelIdentity("project.Model", {"width": "8"}, {"path": "b"})
    assert directory.choose(model=model).record.step == 5
    assert directory.said == ["step-5.ckpt was saved with another path; it is continued"]


def test_files_that_nobody_of_the_series_wrote_are_no_candidates(directory):
    own = directory.save(5)
    for name in ("last.ckpt", "step-9.ckpt", ".step-9.ckpt.partial-1-ab", "step-9.txt"):
        (own.parent / name).write_bytes(own.read_bytes())
    content = json.loads(own.with_suffix(".json").read_text())
    (own.parent / "last.json").write_text(json.dumps({**content, "number": 9}))
    # As of plain Lightning, or of a program that saves into the job's directory.
    (directory.root / "last.ckpt").write_bytes(own.read_bytes())
    assert directory.choose().record.number == 5
    assert directory.said == []
