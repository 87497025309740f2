import os

import pytest

from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile
from lightning_sm._resume.series import Series, complete_record, other_series
from tests.projects.container import log_lines


@pytest.fixture(params=["directory", "url"])
def root(request, tmp_path):
    """The checkpoint directory of a job, and the same at a URL."""
    if request.param == "directory":
        yield str(tmp_path)
        return
    system = pytest.importorskip("fsspec").filesystem("memory")
    yield f"memory://{tmp_path.name}"
    if system.exists(f"/{tmp_path.name}"):
        system.rm(f"/{tmp_path.name}", recursive=True)


def put(path, content):
    if "://" in path:
        import fsspec

        fsspec.filesystem("memory").pipe_file(path.partition(":/")[2], content)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def names(series):
    if "://" in series.directory:
        import fsspec

        system, path = fsspec.filesystem("memory"), series.directory.partition(":/")[2]
        return sorted(entry.rpartition("/")[2] for entry in system.ls(path, detail=False))
    return sorted(os.listdir(series.directory))


def save(series, step, number):
    name = f"step-{step}.ckpt"
    put(series.path(name), b"content")
    record = CheckpointRecord(name, number, step, 0, "batch", 1).to_json()
    complete_record(record, series.directory, [SavedFile(name, 7, 1)])


def test_two_saves_are_kept_and_read_newest_first(root):
    series = Series(f"{root}/", "train-aaaaaa", 0)
    assert series.records() == []
    # The order of the numbers counts, which a restart with fewer steps in an epoch may put apart from the steps.
    for number, step in enumerate([5, 100, 20, 9, 7]):
        save(series, step, number)
    assert [record.step for record in series.records()] == [7, 9]
    assert names(series) == ["step-7.ckpt", "step-7.json", "step-9.ckpt", "step-9.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b'{"files": []}', b"\xff\xfe"], ids=repr)
def test_damaged_records_are_skipped_with_a_line(root, content):
    series = Series(root, "train-aaaaaa", 0)
    save(series, 5, 1)
    put(series.path("step-6.json"), content)
    put(series.path("fit.json"), content)
    with log_lines() as lines:
        assert [record.step for record in series.records()] == [5]
        assert series.fit() is None
    assert len(lines) == 2
    for line, name in zip(lines, ("step-6.json", "fit.json")):
        assert line.startswith(f"Skipped {series.path(name)}: it cannot be read (")
    assert Series(root, "train-aaaaaa", 1).fit() is None


def test_what_is_no_save_stays(root):
    series = Series(root, "train-aaaaaa", 0)
    series.write_fit(FitRecord(ended=True))
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


def test_a_record_goes_before_its_checkpoint(tmp_path, monkeypatch):
    series = Series(str(tmp_path), "train-aaaaaa", 0)
    for step in (1, 2):
        save(series, step, step)
    removed = []
    monkeypatch.setattr("lightning_sm._resume.storage.Storage.remove", lambda _, name: removed.append(name))
    series.remove_but([])
    assert [name.endswith(".json") for name in removed] == [True, True, False, False]


def test_earlier_fits_keep_their_end_and_later_ones_go(root):
    fits = [Series(root, "train-aaaaaa", number) for number in (0, 1, 2, 10)]
    other = Series(root, "train-bbbbbb", 10)
    for series in (*fits, other):
        for step in (7, 8):
            save(series, step, step)
    fits[0].write_fit(FitRecord(ended=True, checkpoint="step-8.ckpt"))
    fits[1].write_fit(FitRecord())
    fits[2].thin_out_earlier()
    assert [len(series.records()) for series in fits] == [1, 2, 2, 2]
    fits[1].remove_later_fits()
    assert [len(series.records()) for series in fits] == [1, 2, 0, 0]
    assert len(other.records()) == 2


def test_series_of_other_programs_are_found(root):
    for program, fit in (("a-aaaaaa", 0), ("b-bbbbbb", 3)):
        save(Series(root, program, fit), 1, 1)
    put(f"{root}/lightning_logs/version_0/a.ckpt", b"1")
    put(f"{root}/run-abcdef/last.ckpt", b"1")
    assert other_series(root, "a-aaaaaa") == ("b-bbbbbb",)
    assert other_series(f"{root}/none", "a-aaaaaa") == ()
