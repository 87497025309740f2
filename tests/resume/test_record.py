import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sm._resume.record import MANIFEST, CheckpointRecord, CorruptedError, FitRecord, SavedFile, read_manifest

RECORD = CheckpointRecord("step-1.ckpt", 1, 1, 0, "batch", 1, files=(SavedFile("step-1.ckpt", 1, 1),))


@pytest.mark.parametrize("part", ["/etc/passwd", "..", "../a", "a/../../b", "a//b", "./a", "a/", ""])
def test_names_that_lead_out_of_the_directory_are_refused(part):
    file = {"name": part, "size": 1, "crc32": 1}
    with pytest.raises(ValueError, match="is no path within the checkpoint"):
        CheckpointRecord.from_json({**asdict(RECORD), "files": [file]})
    with pytest.raises(ValueError, match="is no path within the checkpoint"):
        FitRecord.from_json({**asdict(FitRecord()), "weights": file})
    with pytest.raises(ValueError, match="it is no record of a checkpoint"):
        CheckpointRecord.from_json({**asdict(RECORD), "name": part})


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": 3},
        {"files": [{}]},
        {"files": [{"name": "a", "size": 1, "crc32": 1}] * 2},
        {"number": "1"},
        {"name": 3},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_record(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        CheckpointRecord.from_json({**asdict(RECORD), **change})


@settings(max_examples=30)
@given(content=st.binary(min_size=1, max_size=300), at=st.integers(0, 299))
def test_a_file_is_whole_as_long_as_no_byte_changes(tmp_path_factory, content, at):
    folder = tmp_path_factory.mktemp("file")
    path = folder / "a"
    path.write_bytes(content)
    file = SavedFile.read(str(folder), "a")
    assert file.problem(str(path)) is None
    changed = bytearray(content)
    changed[at % len(changed)] ^= 1
    path.write_bytes(changed)
    assert file.problem(str(path)) == "a is corrupted, or of another save (CRC-32 mismatch)"
    assert replace(file, crc32=None).problem(str(path)) is None
    path.write_bytes(content[1:])
    assert file.problem(str(path)) == f"a has {len(content) - 1} bytes instead of {len(content)}"
    path.unlink()
    assert file.problem(str(path)) == "a is missing"


@pytest.mark.parametrize("content", [b"", b"{", b"3", b'{"files": []}', b"\xff\xfe"], ids=repr)
def test_the_record_in_a_folder(tmp_path, content):
    assert read_manifest(str(tmp_path)) is None
    (tmp_path / MANIFEST).write_text(json.dumps(asdict(RECORD)))
    assert read_manifest(str(tmp_path)) == RECORD
    assert RECORD.problem(str(tmp_path)) == "its step-1.ckpt is missing"
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CorruptedError, match=r"^its manifest\.json cannot be read"):
        read_manifest(str(tmp_path))
