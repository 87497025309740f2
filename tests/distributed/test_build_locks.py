"""Locks of builds of extensions, real files and processes."""

import os
import subprocess
import sys

import pytest

from lightning_sm._distributed import build_locks
from lightning_sm._distributed.build_locks import extensions_folder, remove_left_locks
from lightning_sm._logging import log
from lightning_sm.errors import StrategyUnavailableError


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "py311_cu121" / "fused_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.mark.parametrize("extension", ["py311_cu121/fused_adam", "deepspeed_shm_comm"])
def test_a_lock_that_nobody_holds_is_removed_with_a_line(tmp_path, monkeypatch, extension):
    said = []
    monkeypatch.setattr(log, "warning", lambda *args: said.append(args[0] % args[1:]))
    left = tmp_path / extension / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    (left.parent / "main.o").touch()
    remove_left_locks(tmp_path)
    assert not left.exists()
    assert (left.parent / "main.o").exists()
    assert [line.split(" is ")[0] for line in said] == [f"Removed a lock that a killed build left behind: {left}"]


def test_the_lock_of_a_build_that_goes_on_stays_until_it_is_killed(tmp_path, lock):
    lock.unlink()
    program = (
        "import sys, time; from torch.utils.file_baton import FileBaton;"
        "FileBaton(sys.argv[1]).try_acquire() and print('built', flush=True); time.sleep(100)"
    )
    # torch's own lock in a process of its own. The object must live as long as the process.
    program = program.replace("FileBaton(sys.argv[1]).try_acquire()", "(b := FileBaton(sys.argv[1])).try_acquire()")
    with subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout.readline() == "built\n"
        remove_left_locks(tmp_path)
        assert lock.exists()
        builder.kill()
    remove_left_locks(tmp_path)
    assert not lock.exists()


def test_on_a_shared_file_system_it_is_refused(tmp_path, lock, monkeypatch):
    monkeypatch.setattr(build_locks, "_SHARED", ("",))
    with pytest.raises(StrategyUnavailableError, match=r"lock is 0 minutes old, .* wait for it forever.* HINT: Delete"):
        remove_left_locks(tmp_path)
    assert lock.exists()


def test_a_lock_that_cannot_be_removed_is_told(tmp_path, lock, monkeypatch):
    def refuse(path):
        raise PermissionError("read-only")

    monkeypatch.setattr(type(lock), "unlink", refuse)
    with pytest.raises(StrategyUnavailableError, match="removing it failed: read-only"):
        remove_left_locks(tmp_path)


def test_no_folder_is_no_error(tmp_path):
    remove_left_locks(tmp_path / "none")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/fsx/ext", "HOME": "/root"}, "/fsx/ext"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/root"}, "/cache/torch_extensions"),
        ({"HOME": "/home/me"}, "/home/me/.cache/torch_extensions"),
        ({}, "/root/.cache/torch_extensions"),
    ],
)
def test_where_torch_builds(environ, folder):
    assert extensions_folder(environ) == folder


def test_the_default_is_torchs_own(monkeypatch):
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert cpp_extension.get_default_build_root() == extensions_folder(os.environ)
