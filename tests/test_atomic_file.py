import errno
import os

import pytest

from lightning_sm import _atomic_file
from lightning_sm._atomic_file import partial_path, remove_at_once, remove_on_error, replace_atomically


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_mount_that_cannot_be_told_to_flush(tmp_path, monkeypatch, number):
    (tmp_path / "partial").write_text("new")
    (tmp_path / "final").write_text("old")

    def fsync(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("lightning_sm._atomic_file.os.fsync", fsync)
    if number == errno.EINVAL:
        replace_atomically(str(tmp_path / "partial"), str(tmp_path / "final"))
        assert (tmp_path / "final").read_text() == "new"
    else:
        with pytest.raises(OSError, match="Input/output"), remove_on_error(str(tmp_path / "partial")):
            replace_atomically(str(tmp_path / "partial"), str(tmp_path / "final"))
        assert (tmp_path / "final").read_text() == "old"
    assert os.listdir(tmp_path) == ["final"]


def test_a_hidden_name_is_never_too_long(tmp_path):
    target = tmp_path / ("權" * 85)
    partial = partial_path(str(target), "0" * 16)
    for path in (partial, target):
        open(path, "w").close()
    replace_atomically(partial, str(target))
    remove_at_once(str(target))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_link", [True, False])
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_file_takes_the_place_of_a_directory(tmp_path, monkeypatch, exchanges, is_link):
    """As the checkpoint of one process that of a sharded job, which was killed before its record was written."""
    if not exchanges:
        monkeypatch.setattr(_atomic_file, "_exchange", lambda one, other: False)
    folder = tmp_path / "saves"
    target, partial = folder / "step-4.ckpt", folder / ".step-4.ckpt.partial"
    place = tmp_path / "elsewhere" if is_link else target
    place.mkdir(parents=True)
    (place / "shard").touch()
    folder.mkdir(exist_ok=True)
    if is_link:
        target.symlink_to(place)
    partial.write_text("whole")
    replace_atomically(str(partial), str(target))
    assert [path.name for path in folder.iterdir()] == ["step-4.ckpt"]
    assert not is_link or (place / "shard").exists()
    assert target.read_text() == "whole"
