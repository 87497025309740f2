"""Locks of builds of extensions, real files and processes."""

import subprocess
import sys

import pytest

from lightning_sm._distributed.build_locks import remove_left_locks
from tests.projects.container import log_lines


@pytest.fixture(params=["py311_cu121/fused_adam", "deepspeed_shm_comm"])
def lock(request, tmp_path):
    folder = tmp_path / request.param
    folder.mkdir(parents=True)
    (folder / "main.o").touch()
    (folder / "lock").touch()
    return folder / "lock"


def test_a_lock_that_nobody_holds_is_removed_with_a_line(tmp_path, lock):
    with log_lines() as said:
        remove_left_locks(tmp_path, shared=False)
        remove_left_locks(tmp_path / "none", shared=False)
    assert [path.name for path in lock.parent.iterdir()] == ["main.o"]
    assert said == [f"Removed a lock that a killed build left behind: {lock}."]


def test_the_lock_of_a_build_that_goes_on_stays_until_it_is_killed(tmp_path):
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    # torch's own lock in a process of its own. The object must live as long as the process.
    program = (
        "import sys, time; from torch.utils.file_baton import FileBaton;"
        "(b := FileBaton(sys.argv[1])).try_acquire() and print('built', flush=True); time.sleep(100)"
    )
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
