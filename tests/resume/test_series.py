import os

import pytest

from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile
from lightning_sm._resume.series import Series, complete_record


@pytest.fixture
def series(tmp_path):
    """The series of a job's first fit."""
    return Series(str(tmp_path), "train-aaaaaa", 0)


def put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def names(series):
    return sorted(os.listdir(series.directory))


def save(series, step, number):
    name = f"step-{step}.ckpt"
    put(series.path(name), b"content")
    record = CheckpointRecord(name, number, step, 0, "batch", 1)
    complete_record(record, series.directory, [SavedFile(name, 7, 1)])


def test_two_saves_are_kept_and_read_newest_first(series):
    assert series.records() == []
    # The order of the numbers counts, which a restart with fewer steps in an epoch may put apart from the steps.
    for number, step in enumerate([5, 100, 20, 9, 7]):
        save(series, step, number)
    assert [record.step for record in series.records()] == [7, 9]
    assert names(series) == ["step-7.ckpt", "step-7.json", "step-9.ckpt", "step-9.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b'{"files": []}', b"\xff\xfe"], ids=repr)
def test_damaged_records_are_skipped_with_a_line(lines, series, content):
    save(series, 5, 1)
    put(series.path("step-6.json"), content)
    put(series.path("fit.json"), content)
    assert [record.step for record in series.records()] == [5]
    assert series.fit() is None
    assert len(lines) == 2
    for line, name in zip(lines, ("step-6.json", "fit.json")):
        assert line.startswith(f"Skipped {series.path(name)}: it cannot be read (")


def test_what_is_no_save_stays(series):
    series.write(FitRecord(ended=True))
    for name in ("weights.pt", "own.ckpt", "step-x.ckpt", "step-1.ckpt.part"):
        put(series.path(name), b"1")
    for number in range(3):
        save(series, number, number)
    # A checkpoint whose record was never written, and a record whose checkpoint is gone.
    put(series.path("step-8.ckpt"), b"1")
    put(series.path("step-9-2.json"), b"{}")
    kept = ["fit.json", "own.ckpt", "step-1.ckpt.part", "step-x.ckpt", "weights.pt"]
    series.remove_but(["step-2.ckpt"])
    assert names(series) == sorted([*kept, "step-2.ckpt", "step-2.json"])
    series.remove_but([])
    assert names(series) == kept
    assert series.fit() == FitRecord(ended=True)


def test_later_fits_are_removed_with_what_a_kill_has_left_of_them(tmp_path):
    for name in ("fit-1/a", "fit-2/a", "fit-10/a", ".fit-3.removed-00c0ffee00c0ffee/a", "own"):
        put(f"{tmp_path}/train-aaaaaa/{name}", b"1")
    Series(str(tmp_path), "train-aaaaaa", 1).remove_later_fits()
    assert sorted(path.name for path in (tmp_path / "train-aaaaaa").iterdir()) == ["fit-1", "own"]


def test_a_record_goes_before_its_checkpoint(series, monkeypatch):
    for step in (1, 2):
        save(series, step, step)
    removed = []
    monkeypatch.setattr("lightning_sm._resume.storage.Storage.remove", lambda _, name: removed.append(name))
    series.remove_but([])
    assert [name.endswith(".json") for name in removed] == [True, True, False, False]
