"""The lines of a wait as values, and the thread that logs them."""

import threading
import time

import pytest

from lightning_sm._distributed import rendezvous
from lightning_sm._distributed.rendezvous import RendezvousWait, describe_wait, wait_until_resolvable
from lightning_sm._failure import RendezvousState
from lightning_sm.errors import TopologyError
from tests.projects.container import log_lines

_HOSTS = [f"algo-{number + 1}" for number in range(100)]


def _wait(world_size, hosts, joined=(), starting=(), known=()):
    state = RendezvousState(frozenset(joined), frozenset(starting), frozenset(known))
    return describe_wait(61.4, "algo-1:7777", 0, world_size, hosts, state)


def test_a_host_is_missing():
    assert _wait(16, _HOSTS[:2], range(8), (), ["algo-1"]) == (
        "Waiting at algo-1:7777 for 8 of 16 ranks, for 61 s so far. Not started: ranks 8-15; host algo-2."
    )


def test_some_have_started():
    assert _wait(16, _HOSTS[:2], range(7), [7, *range(8, 12)], ["algo-1", "algo-2"]) == (
        "Waiting at algo-1:7777 for 9 of 16 ranks, for 61 s so far. Not started: ranks 12-15; host algo-2. "
        "Started, but not in the rendezvous yet: ranks 7-11."
    )


def test_the_last_rank_of_a_host_that_has_started():
    line = _wait(4, _HOSTS[:2], range(3), (), ["algo-1", "algo-2"])
    assert line.endswith(" Not started: rank 3; host algo-2.")


def test_nobody_is_missing():
    assert _wait(2, _HOSTS[:2], [0, 1]).startswith("All 2 ranks are in the rendezvous at algo-1:7777, and")


def test_the_line_of_a_hundred_hosts_is_short():
    one_of_two = range(0, 800, 2)
    line = _wait(800, _HOSTS, one_of_two, range(1, 800, 4), ["algo-1"])
    assert len(line) < 400
    assert line.count("\n") == 0
    assert "and 91 more" in line


def test_without_a_server_and_on_other_hosts():
    assert describe_wait(30, "a:1", 0, 8, [], None) == "Waiting at a:1 for the other 7 ranks, for 30 s so far."
    assert describe_wait(30, "a:1", 4, 8, [], None).startswith("Rank 4 waits for the main host a:1 and for all other")


def _end(wait):
    deadline = time.monotonic() + 10
    while wait.is_alive and time.monotonic() < deadline:
        time.sleep(0.01)
    return not wait.is_alive


def test_lines_at_the_interval_until_the_call_has_returned():
    def init_process_group():
        time.sleep(0.35)

    wait = RendezvousWait(lambda seconds: f"waited {seconds:.1f}", 0.1)
    with log_lines() as lines:
        wait.start()
        init_process_group()
        assert _end(wait)
        count = len(lines)
        time.sleep(0.3)
    assert 2 <= count <= 4
    assert len(lines) == count


def test_it_ends_when_the_call_has_failed():
    def init_process_group():
        time.sleep(0.25)
        raise RuntimeError("Socket Timeout")

    wait = RendezvousWait(lambda _: "waiting", 0.1)
    wait.start()
    with pytest.raises(RuntimeError, match="Socket Timeout"):
        init_process_group()
    assert _end(wait)


def test_it_ends_with_the_strategy(monkeypatch):
    monkeypatch.setattr(rendezvous, "_current", None)
    monkeypatch.setattr(rendezvous, "_is_initialized", lambda: False)
    rendezvous.log_wait(lambda _: "waiting", 60)
    first = rendezvous._current
    # The address is asked for more than once.
    rendezvous.log_wait(lambda _: "waiting", 60)
    assert rendezvous._current is first
    rendezvous.end_wait()
    assert _end(first)


def test_nothing_in_a_process_that_has_joined(monkeypatch):
    monkeypatch.setattr(rendezvous, "_current", None)
    monkeypatch.setattr(rendezvous, "_is_initialized", lambda: True)
    before = threading.active_count()
    rendezvous.log_wait(lambda _: "waiting", 60)
    assert threading.active_count() == before


def test_an_error_in_a_line_ends_the_lines_only():
    wait = RendezvousWait(lambda _: str(1 / 0), 0.05)
    with log_lines() as lines:
        wait.start()
        assert _end(wait)
    assert lines == ["Nothing more is logged of this wait: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(("interval", "least", "most"), [(0.2, 3, 5), (30.0, 1, 1), (None, 0, 0)])
def test_a_name_that_does_not_resolve(interval, least, most):
    with log_lines() as lines, pytest.raises(TopologyError, match="did not resolve within 1 seconds"):
        wait_until_resolvable("no-such-host.invalid", "MASTER_ADDR", 0.8, interval=interval)
    assert least <= len(lines) <= most
    assert all("for the name of the main host no-such-host.invalid to resolve, for " in line for line in lines)
