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


@pytest.mark.parametrize(
    ("shared", "says"),
    [
        (False, "Removed a lock that a killed build left behind: {}."),
        # A build may run on another host.
        (True, "{} is there, no process of this host builds, and torch waits for it forever. HINT: Delete the file"),
    ],
)
def test_a_lock_that_nobody_holds_is_removed_or_only_named_where_hosts_may_share_it(tmp_path, lock, shared, says):
    with log_lines() as lines:
        remove_left_locks(tmp_path, shared=shared)
        remove_left_locks(tmp_path / "none", shared=shared)
    assert {path.name for path in lock.parent.iterdir()} == ({"main.o", "lock"} if shared else {"main.o"})
    assert [line.startswith(says.format(lock)) for line in lines] == [True]


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
