import json
import os

import pytest

from lightning_sm._resume.manifest import MANIFEST, Manifest, new_save_id
from lightning_sm._resume.record import CorruptedError, SavedFile, file_crc32

FILES = {"meta.pt": b"meta", "sub/__0_0.distcp": b"x" * 1000, ".metadata": b""}


@pytest.fixture
def saved(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    files = tuple(
        SavedFile(name, len(content), file_crc32(str(tmp_path / name))) for name, content in sorted(FILES.items())
    )
    manifest = Manifest("dcp", 4, new_save_id(), files)
    manifest.write(str(tmp_path))
    return manifest


def test_what_was_written_is_read(saved, tmp_path):
    assert Manifest.read(str(tmp_path)) == saved
    assert saved.size == 1004
    assert Manifest.read(str(tmp_path / "sub")) is None
    # A person can read which files there are, one in a line.
    assert len((tmp_path / MANIFEST).read_text().splitlines()) == len(FILES) + 2


def test_a_whole_folder_has_no_problem(saved, tmp_path):
    (tmp_path / "another.sagemaker-uploading").write_text("not ours")
    assert saved.problems(str(tmp_path)) == ()


def _damage(folder, how):
    shard = folder / "sub" / "__0_0.distcp"
    if how == "missing":
        shard.unlink()
    elif how == "truncated":
        os.truncate(shard, 999)
    elif how == "a folder":
        shard.unlink()
        shard.mkdir()
    else:
        shard.write_bytes(b"x" * 500 + b"y" + b"x" * 499)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "it is incomplete: sub/__0_0.distcp is missing"),
        ("a folder", "it is incomplete: sub/__0_0.distcp is missing"),
        ("truncated", "its sub/__0_0.distcp has 999 bytes instead of 1000"),
        ("changed", "its sub/__0_0.distcp is corrupted, or of another save (CRC-32 mismatch)"),
    ],
)
def test_damage_is_named(saved, tmp_path, how, reason):
    _damage(tmp_path, how)
    assert saved.problems(str(tmp_path)) == (reason,)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"files": []},
        {"files": [{"name": "../escape", "size": 1, "crc32": 1}]},
        {"files": [{"name": "/etc/passwd", "size": 1, "crc32": 1}]},
        {"files": [{"name": "a//b", "size": 1, "crc32": 1}]},
        {"files": [{"name": "a", "size": 1, "crc32": 1}] * 2},
        {"files": [{"name": "a"}]},
        {"files": 3},
        {"world_size": "many"},
    ],
    ids=str,
)
def test_what_is_no_manifest(saved, tmp_path, change):
    content = {**json.loads((tmp_path / MANIFEST).read_text()), **change}
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CorruptedError, match=r"^its manifest\.json "):
        Manifest.read(str(tmp_path))


def test_half_a_manifest(saved, tmp_path):
    os.truncate(tmp_path / MANIFEST, 40)
    with pytest.raises(CorruptedError, match=r"^its manifest\.json cannot be read"):
        Manifest.read(str(tmp_path))
    os.truncate(tmp_path / MANIFEST, 0)
    with pytest.raises(CorruptedError):
        Manifest.read(str(tmp_path))


def test_saves_have_different_identifiers():
    assert len({new_save_id() for _ in range(100)}) == 100


def test_the_crc_is_that_of_zip_files(tmp_path):
    (tmp_path / "file").write_bytes(b"123456789")  # the check value of the CRC catalogue
    assert file_crc32(str(tmp_path / "file")) == 0xCBF43926
