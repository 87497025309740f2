"""Locks of builds of extensions, real files and processes."""

import subprocess
import sys

import pytest

from lightning_sm._distributed.build_locks import remove_left_locks
from tests.projects.container import log_lines


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "py311_cu121" / "fused_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.mark.parametrize("extension", ["py311_cu121/fused_adam", "deepspeed_shm_comm"])
def test_a_lock_that_nobody_holds_is_removed_with_a_line(tmp_path, extension):
    left = tmp_path / extension / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    (left.parent / "main.o").touch()
    with log_lines() as said:
        remove_left_locks(tmp_path, shared=False)
    assert not left.exists()
    assert (left.parent / "main.o").exists()
    assert said == [f"Removed a lock that a killed build left behind: {left}."]


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
        remove_left_locks(tmp_path, shared=False)
        assert lock.exists()
        builder.kill()
    remove_left_locks(tmp_path, shared=False)
    assert not lock.exists()


def test_a_lock_in_a_folder_that_hosts_may_share_is_named_only(tmp_path, lock):
    with log_lines() as lines:
        remove_left_locks(tmp_path, shared=True)
    assert lock.exists()
    assert [f"{lock} is there, no process of this host builds" in line for line in lines] == [True]


def test_no_folder_is_no_error(tmp_path):
    remove_left_locks(tmp_path / "none", shared=False)
