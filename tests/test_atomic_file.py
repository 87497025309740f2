import errno
import os

import pytest

from lightning_sm._atomic_file import remove, remove_on_error, replace_atomically


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


def test_what_is_gone_already_can_be_removed(tmp_path):
    remove(str(tmp_path / "nothing"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    remove(str(tmp_path / "folder"))
    assert os.listdir(tmp_path) == []
