import json
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile, write_json

NAMES = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..")
)
FILES = st.builds(SavedFile, st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.integers(0), st.integers(0))
PLAIN = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text())
RECORDS = st.builds(
    CheckpointRecord, NAMES, st.integers(0), st.integers(0), st.integers(0), st.text(), st.integers(1), st.text(),
    st.text(), st.floats(allow_nan=False), PLAIN, PLAIN, st.lists(FILES, min_size=1, max_size=3).map(tuple),
)  # fmt: skip
FITS = st.builds(
    FitRecord, PLAIN, PLAIN, st.lists(st.text()).map(tuple), st.booleans(), st.none() | NAMES, PLAIN, st.none() | FILES
)


@settings(max_examples=30)
@given(record=st.one_of(RECORDS, FITS))
def test_json_keeps_all_of_a_record(record):
    assert type(record).from_json(json.loads(json.dumps(record.to_json()))) == record


RECORD = CheckpointRecord("step-1.ckpt", 1, 1, 0, "batch", 1, files=(SavedFile("step-1.ckpt", 1, 1),))


@pytest.mark.parametrize("part", ["/etc/passwd", "..", "../a", "a/../../b", "a//b", "./a", "a/", ""])
def test_names_that_lead_out_of_the_directory_are_refused(part):
    file = {"name": part, "size": 1, "crc32": 1}
    with pytest.raises(ValueError, match="is no path within the checkpoint"):
        CheckpointRecord.from_json({**RECORD.to_json(), "files": [file]})
    with pytest.raises(ValueError, match="is no path within the checkpoint"):
        FitRecord.from_json({**FitRecord().to_json(), "weights": file})
    with pytest.raises(ValueError, match="it is no record of a checkpoint"):
        CheckpointRecord.from_json({**RECORD.to_json(), "name": part})


@pytest.mark.parametrize(
    "change", [{"files": []}, {"files": 3}, {"files": [{}]}, {"number": "1"}, {"name": 3}, {"more": 1}], ids=str
)
def test_what_is_no_record(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        CheckpointRecord.from_json({**RECORD.to_json(), **change})


def test_a_record_without_its_files_is_none():
    with pytest.raises(KeyError):
        CheckpointRecord.from_json({key: value for key, value in RECORD.to_json().items() if key != "files"})


@settings(max_examples=30)
@given(content=st.binary(max_size=300), at=st.integers(0, 299))
def test_a_file_is_intact_as_long_as_no_byte_changes(tmp_path_factory, content, at):
    folder = tmp_path_factory.mktemp("file")
    (folder / "a").write_bytes(content)
    file = SavedFile.read(str(folder), "a")
    assert file.is_intact(str(folder))
    changed = bytearray(content or b"\0")
    changed[at % len(changed)] ^= 1
    (folder / "a").write_bytes(changed)
    assert not file.is_intact(str(folder))
    (folder / "a").unlink()
    assert not file.is_intact(str(folder))


def test_json_is_replaced_at_once(tmp_path, monkeypatch):
    path = str(tmp_path / "step-1.json")
    write_json(path, RECORD.to_json())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning_sm._atomic_file.flush", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, replace(RECORD, step=2).to_json())
    with open(path) as file:
        assert CheckpointRecord.from_json(json.load(file)) == RECORD
    monkeypatch.undo()
    write_json(path, [1])
    assert os.listdir(tmp_path) == ["step-1.json"]
