import hashlib
import zipfile

import pytest
import torch

from lightning_sm._checkpoint import contents
from lightning_sm._checkpoint.contents import DamagedError, check_and_digest, list_records, read_record
from tests.resume.checkpoints import damage, write


@pytest.mark.parametrize("chunk", [1, 1000, 4096, 10**6])
def test_the_digest_is_the_files_in_pieces_of_any_size(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(contents, "_CHUNK", chunk)
    path = write(tmp_path / "a.ckpt")
    assert check_and_digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    damage(path, "flipped bit in a tensor")
    with pytest.raises(DamagedError, match=r"its record (a|archive)/data/\d are not those that were written"):
        check_and_digest(str(path))
    assert check_and_digest(str(path), check=False) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "it is empty"),
        ("truncated", "truncated, or no file of torch's"),
        ("half", "truncated, or no file of torch's"),
        ("text", "truncated, or no file of torch's"),
        ("zeros in its middle", "not those that were written|header of its record"),
        ("flipped bit in a tensor", "not those that were written"),
        ("flipped bit in the pickle", "not those that were written"),
    ],
)
def test_each_kind_of_damage_is_named(tmp_path, kind, reason):
    path = write(tmp_path / "a.ckpt")
    damage(path, kind)
    with pytest.raises(DamagedError, match=reason):
        check_and_digest(str(path))


def test_every_record_is_found_where_it_is(tmp_path):
    path = write(tmp_path / "a.ckpt")
    with zipfile.ZipFile(path) as archive:
        expected = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    assert {record.name: read_record(str(path), record) for record in list_records(str(path))} == expected


def test_a_record_that_is_read_is_compared(tmp_path):
    path = write(tmp_path / "a.ckpt")
    damage(path, "flipped bit in the pickle")
    pickled = next(record for record in list_records(str(path)) if record.name.endswith("data.pkl"))
    with pytest.raises(DamagedError, match=r"data\.pkl"):
        read_record(str(path), pickled)


def test_other_archives_are_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", "x" * 1000)
    with pytest.raises(DamagedError, match="compressed"):
        list_records(str(path))


@pytest.mark.skipif(not hasattr(torch.serialization, "set_crc32_options"), reason="this torch always writes the CRC")
def test_a_file_without_crcs_can_only_be_digested(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = write(tmp_path / "a.ckpt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert check_and_digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
