import collections
import functools
import hashlib
import pickle
import re
import shutil
import zipfile
import zlib

import pytest
import torch

from lightning_sm._checkpoint import integrity
from lightning_sm._checkpoint.candidates import list_candidates
from lightning_sm._checkpoint.integrity import (
    CorruptedError,
    UnknownObject,
    file_records,
    read_contents,
    read_pickle,
    verify_and_hash,
    weights_only_error,
)
from tests.checkpoint.checkpoint_files import Extra, damage, write


@pytest.mark.parametrize("chunk", [1, 1000, 4096, 10**6])
def test_the_digest_is_the_files_in_pieces_of_any_size(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(integrity, "_CHUNK", chunk)
    path = write(tmp_path / "a.ckpt")
    assert verify_and_hash(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    damage(path, "flipped bit in a tensor")
    with pytest.raises(CorruptedError, match=r"its record (a|archive)/data/\d is corrupted"):
        verify_and_hash(str(path))
    assert verify_and_hash(str(path), check=False) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "it is empty"),
        ("truncated", "truncated, or was not written by torch.save"),
        ("half", "truncated, or was not written by torch.save"),
        ("text", "truncated, or was not written by torch.save"),
        ("zeros in its middle", "is corrupted"),
        ("flipped bit in a tensor", "is corrupted"),
        ("flipped bit in the pickle", "is corrupted"),
    ],
)
def test_each_kind_of_damage_is_named(tmp_path, kind, reason):
    path = write(tmp_path / "a.ckpt")
    damage(path, kind)
    with pytest.raises(CorruptedError, match=reason):
        verify_and_hash(str(path))


def test_every_record_is_listed(tmp_path):
    path = write(tmp_path / "a.ckpt")
    with zipfile.ZipFile(path) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    expected = {(name, len(content), zlib.crc32(content)) for name, content in contents.items()}
    assert set(file_records(str(path))) == expected


def test_a_record_that_is_read_is_compared(tmp_path):
    path = write(tmp_path / "a.ckpt")
    damage(path, "flipped bit in the pickle")
    with pytest.raises(CorruptedError, match=r"data\.pkl"):
        read_contents(str(path))


def test_a_flipped_bit_in_a_header_is_found(tmp_path):
    path = write(tmp_path / "a.ckpt")
    content = bytearray(path.read_bytes())
    content[content.index(b"data.pkl")] ^= 1  # the name in the local header, which torch does not compare
    path.write_bytes(content)
    with pytest.raises(CorruptedError, match="is corrupted"):
        verify_and_hash(str(path))


def test_a_flipped_bit_in_a_size_is_found(tmp_path):
    path = write(tmp_path / "a.ckpt")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 24 + 3] ^= 1  # the uncompressed size in the central directory
    path.write_bytes(content)
    with pytest.raises(CorruptedError, match=r"the size of its record (a|archive)/data\.pkl is corrupted"):
        verify_and_hash(str(path))


def test_other_archives_are_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", "x" * 1000)
    with pytest.raises(CorruptedError, match="compressed"):
        file_records(str(path))


@pytest.mark.skipif(not hasattr(torch.serialization, "set_crc32_options"), reason="this torch always writes the CRC")
def test_a_file_without_crcs_can_only_be_digested(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = write(tmp_path / "a.ckpt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert verify_and_hash(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_contents(str(path))["global_step"] == 10
    assert {crc for _, _, crc in file_records(str(path))} == {None}


def test_plain_values_are_read_and_no_code_of_the_file_runs(tmp_path):
    path = write(tmp_path / "a.ckpt", step=7, extra=[Extra(), {"a": Extra()}], call=functools.partial(print, "loaded"))
    before = Extra.loaded
    contents = read_contents(str(path))
    assert Extra.loaded == before
    assert (contents["epoch"], contents["global_step"]) == (1, 7)
    assert list(contents["state_dict"]) == ["weight", "bias"]
    assert isinstance(contents["state_dict"]["weight"], UnknownObject)
    assert isinstance(contents["extra"][0], UnknownObject)


def test_a_pickle_that_would_run_a_command_does_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "created"), "w"))

    assert isinstance(read_pickle(pickle.dumps(Evil())), UnknownObject)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "value",
    [
        collections.defaultdict(list, a=[1]),
        collections.Counter("aab"),
        collections.deque([1, 2]),
        {1, 2},
        frozenset({1}),
        torch.float32,
        type("Sub", (list,), {"__module__": __name__}),
        Exception("x"),
        1j,
        slice(1, 2),
        bytearray(b"x"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_any_other_value_is_passed_over(value, protocol, monkeypatch):
    if isinstance(value, type):
        monkeypatch.setitem(globals(), "Sub", value)
        value = value([1, 2])
    assert read_pickle(pickle.dumps({"epoch": 3, "other": value}, protocol))["epoch"] == 3


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", b"\x80\x02}q\x00."[:-1]])
def test_what_is_no_pickle(content):
    with pytest.raises(CorruptedError, match="its contents cannot be read"):
        read_pickle(content)


def test_what_is_no_checkpoint(tmp_path):
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(CorruptedError, match="holds no dict"):
        read_contents(str(tmp_path / "list.ckpt"))
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "script.ckpt"))
    with pytest.raises(CorruptedError):
        read_contents(str(tmp_path / "script.ckpt"))


@pytest.fixture
def folder(tmp_path):
    """What Lightning's sharded strategies write."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(dcp, "save"):
        pytest.skip("torch before 2.2 cannot save a sharded checkpoint in one process")
    path = tmp_path / "epoch=0-step=8.ckpt"
    dcp.save({"model": {"weight": torch.arange(4000.0)}, "count": 3}, checkpoint_id=str(path))
    torch.save({"epoch": 0, "pytorch-lightning_version": "2.0.0", "global_step": 8, "loops": {}}, path / "meta.pt")
    return path


def problem(folder):
    (candidate,) = list_candidates(str(folder.parent))
    if candidate.problem is not None:
        return candidate.problem
    try:
        candidate.digest(str(folder.parent), check=True)
    except CorruptedError as error:
        return str(error)
    return None


def flip_middle(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def test_a_complete_one(folder):
    (candidate,) = list_candidates(str(folder.parent))
    assert (candidate.name, candidate.epoch, candidate.global_step) == ("epoch=0-step=8.ckpt", 0, 8)
    assert candidate.is_folder
    assert candidate.size == sum(path.stat().st_size for path in folder.iterdir())
    assert problem(folder) is None
    digest = candidate.digest(str(folder.parent), check=True)
    assert candidate.digest(str(folder.parent), check=False) == digest
    (folder / "more.txt").write_text("x")
    assert candidate.digest(str(folder.parent), check=False) != digest
    assert weights_only_error(str(folder / "meta.pt")) is None or torch.__version__.startswith("1.")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "meta.pt").unlink(), r"meta\.pt is missing"),
        (lambda folder: (folder / ".metadata").unlink(), r"\.metadata is missing"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), r"__0_0\.distcp is missing"),
        (lambda folder: (folder / "__0_0.distcp").write_bytes(b""), r"__0_0\.distcp is truncated"),
        (lambda folder: flip_middle(folder / "__0_0.distcp"), r"__0_0\.distcp"),
        (lambda folder: (folder / "meta.pt").write_bytes(b""), "it is empty"),
        (lambda folder: (folder / ".metadata").write_bytes(b"\x80"), "its contents cannot be read"),
        (lambda folder: shutil.copy(folder / "meta.pt", folder / ".metadata"), "names no shard|cannot be read"),
    ],
)
def test_what_is_missing_or_damaged_is_named(folder, change, reason):
    change(folder)
    assert problem(folder) is not None
    assert re.search(reason, problem(folder))
