"""What several ranks with a guard process each learn of the failure of one."""

import os
import socket
import subprocess
import sys
import time

import pytest

from lightning_sm._failure.messages import ProcessInfo, early_exit_reason, loss_reason
from tests.failure.ranks import REASON, Rank, quiet
from tests.helpers.processes import until


def lost(rank):
    return loss_reason(ProcessInfo(rank, 0, f"algo-{rank + 1}", rank))


def have(ranks, reason):
    """Whether the failure files of some ranks say so, and the ranks know it."""
    return all((rank.reason, rank.monitor.first_failure) == (reason, reason) for rank in ranks)


def test_publish_returns_when_every_host_has_the_reason(cluster):
    first, second, third = cluster.start()
    second.monitor.publish(REASON)
    assert first.reason == third.reason == REASON
    # The second of two failing ranks learns the first failure, which stays.
    assert third.monitor.wait_for_failure(5) == REASON
    third.monitor.publish("RuntimeError: Connection closed by peer")
    assert first.reason == REASON
    # Who fails writes its own reason.
    assert second.reason is None


def test_a_process_killed_before_it_joined_is_reported_to_ranks_that_wait_for_it(cluster):
    ranks = cluster.start(joined=False, joining=False)
    ranks[1].die()
    assert quiet(ranks)
    ranks[2].monitor.set_joining(2)
    until(lambda: have([ranks[0], ranks[2]], lost(1)))


def test_an_early_exit_is_reported_to_ranks_that_wait(cluster):
    ranks = cluster.start(joined=False)
    ranks[1].monitor.stop()
    reason = early_exit_reason(ProcessInfo(1, 0, "algo-2", 1))
    assert quiet([ranks[0]], 0.5)
    until(lambda: have([ranks[0], ranks[2]], reason))


def test_a_second_program_of_the_same_host_is_no_early_exit(cluster):
    ranks = cluster.start(joined=False, joining=False)
    ranks[1].monitor.stop()
    ranks[0].monitor.set_joining(0)
    cluster.ranks.append(Rank(cluster, 1, joined=False))
    assert quiet(ranks)


def test_a_stop_of_all_before_they_joined_is_no_failure(cluster):
    # SIGTERM ends them one after the other.
    ranks = cluster.start(joined=False)
    for rank in ranks:
        rank.die()
        time.sleep(0.1)
    assert quiet(ranks)


def test_ends_that_are_no_failure(cluster):
    first, second, third = cluster.start(exit_timeout=0.1)
    second.monitor.stop()
    third.monitor.set_training(False)
    until(lambda: first.sees([0, 2]))
    third.die()
    assert quiet([first, second, third])


@pytest.mark.parametrize("joined", [True, False])
def test_a_rank_that_is_blocked_exits_while_it_trains(cluster, joined):
    first, second, third = cluster.start(exit_timeout=0.1, joined=joined)
    first.monitor.set_training(False)
    second.monitor.publish(REASON)
    until(lambda: third.exits == [1])
    assert (first.reason, first.exits, second.exits) == (REASON, [], [])
    first.monitor.set_training(True)
    until(lambda: first.exits == [1])


def test_a_blocked_process_ends_also_where_its_output_cannot_be_written():
    code = (
        "import sys, threading, time; from lightning_sm._failure.process import _exit_blocked; sys.stdout.close()\n"
        "threading.Thread(target=_exit_blocked, args=(3,)).start(); time.sleep(20)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 3


@pytest.mark.parametrize("killed", [0, 1])
def test_the_loss_of_a_guard_ends_nothing(cluster, killed):
    ranks = cluster.start(exit_timeout=0.1)
    before = ranks[killed].monitor._guard
    ranks[killed].kill_guard()
    until(lambda: ranks[killed].monitor._guard is not before and ranks[0].sees([0, 1, 2]))
    assert quiet(ranks)
    # Failures are shared as before.
    ranks[1].monitor.publish(REASON)
    assert ranks[0].reason == REASON


def test_a_guard_that_cannot_stay(cluster, monkeypatch):
    monkeypatch.setattr("lightning_sm._failure.monitor._PROGRAM", "")
    ranks = [Rank(cluster, rank) for rank in range(2)]
    for rank in ranks:
        rank.monitor._thread.join(10)
    assert quiet(ranks, 0)
    ranks[1].monitor.publish(REASON)


@pytest.mark.parametrize("which", [0, 1])
def test_the_loss_of_a_host_is_reported(cluster, which):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[which].lose_host()
    rest = [rank for rank in ranks if rank is not ranks[which]]
    # The name of the main host is that of the server's address.
    reason = lost(1) if which else loss_reason(ProcessInfo(0, 0, "127.0.0.1", 0))
    until(lambda: have(rest, reason))
    until(lambda: all(rank.exits == [1] for rank in rest))


def test_other_servers_are_ignored(cluster):
    with socket.create_server(("127.0.0.1", cluster.address.ports[0])) as other:
        cluster.ranks = [Rank(cluster, 1)]
        connection, _ = other.accept()
        connection.sendall(b'{"kind": "failed", "reason": "forged"}\n')
        assert quiet(cluster.ranks, 0.5)
        connection.close()


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_the_reason_on_every_host_at_once_also_if_a_child_of_a_fork_lives_on(cluster, killed):
    ranks = cluster.start()
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    ranks[killed].die()
    until(lambda: have([rank for rank in ranks if rank is not ranks[killed]], lost(killed)), 1.0)
    until(lambda: ranks[killed].reason == lost(killed))
    os.kill(child, 9)
    os.waitpid(child, 0)


_CODE = """
import os, signal, sys, time
from lightning_sm._failure.address import Address
from lightning_sm._failure.messages import GuardSettings, ProcessInfo
from lightning_sm._failure.monitor import FailureMonitor
process = ProcessInfo(0, 0, "algo-1", 0, os.getpid())
settings = GuardSettings(process, Address("127.0.0.1", (9,), "token"), sys.argv[1] + "/failure")
monitor = FailureMonitor(settings)
monitor.start()
monitor.set_joining(0)
while not monitor._is_in_group: time.sleep(0.01)
time.sleep(0.3)  # the guard is told
"""


@pytest.mark.parametrize(
    ("end", "is_lost"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os.abort()", True),
        ("os._exit(1)", True),
        ("monitor.stop()", False),
        ("monitor.set_training(False); os._exit(0)", False),
    ],
)
def test_how_a_process_ends(tmp_path, end, is_lost):
    # Modules of the user do not reach the guard.
    for name in ("json", "selectors", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    code = f"{_CODE}os.chdir(sys.argv[1]); {end}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n{code}"]
        + [str(tmp_path)],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.stderr == b""
    if is_lost:
        # It is there before it has its text.
        until(lambda: (tmp_path / "failure").exists() and (tmp_path / "failure").read_text())
        assert (tmp_path / "failure").read_text().startswith("Rank 0 on algo-1 was killed: it exited without an exc")
    else:
        time.sleep(0.5)
        assert not (tmp_path / "failure").exists()
