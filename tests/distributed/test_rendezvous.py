"""The lines of a wait, and the thread that logs them. Real waits are in ``tests/processes/test_waiting.py``."""

import pytest

from lightning_sm._distributed import rendezvous
from lightning_sm._distributed.rendezvous import describe_wait, log_wait, wait_until_resolvable
from lightning_sm._failure import RendezvousState
from lightning_sm.errors import TopologyError
from tests.projects.container import log_lines

_HOSTS = [f"algo-{number + 1}" for number in range(100)]


def _wait(world_size, hosts, joined=(), starting=(), known=()):
    state = RendezvousState(joined, starting, known)
    return describe_wait(61.4, "algo-1:7777", 0, world_size, hosts, state)


@pytest.mark.parametrize(
    ("joined", "starting", "known", "said"),
    [
        (range(8), (), ["algo-1"], "Waiting at algo-1:7777 for 8 of 16 ranks, for 61 s so far. "
         "Not started: ranks 8-15; host algo-2."),
        (range(7), [7, *range(8, 12)], ["algo-1", "algo-2"], "Waiting at algo-1:7777 for 9 of 16 ranks, for 61 s so "
         "far. Not started: ranks 12-15. Started, but not in the rendezvous yet: ranks 7-11."),
        (range(16), (), ["algo-1", "algo-2"], "All 16 ranks are in the rendezvous at algo-1:7777, and "
         "init_process_group has not returned for 61 s."),
    ],
    ids=["a host is missing", "some have started", "nobody is missing"],
)  # fmt: skip
def test_who_is_missing(joined, starting, known, said):
    assert _wait(16, _HOSTS[:2], joined, starting, known) == said


def test_the_line_of_a_hundred_hosts_is_short():
    line = _wait(800, _HOSTS, range(0, 800, 2), range(1, 800, 4), ["algo-1"])
    assert len(line) < 400
    assert "and 91 more" in line


def test_without_a_server_and_on_other_hosts():
    assert describe_wait(30, "a:1", 0, 8, [], None) == "Waiting at a:1 for the other 7 ranks, for 30 s so far."
    assert describe_wait(30, "a:1", 4, 8, [], None).startswith("Rank 4 waits for the main host a:1 and for all other")


def test_an_error_in_a_line_ends_the_lines_only(lines, monkeypatch):
    monkeypatch.setattr(rendezvous, "_thread", None)
    monkeypatch.setattr(rendezvous, "is_group_initialized", lambda: False)
    log_wait(lambda _: str(1 / 0), 0.05)
    rendezvous._thread.join(10)
    assert lines == ["Nothing more is logged of this wait: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(("interval", "least", "most"), [(0.2, 3, 5), (30.0, 1, 1), (None, 0, 0)])
def test_a_name_that_does_not_resolve(interval, least, most):
    with log_lines() as lines, pytest.raises(TopologyError, match="did not resolve within 1 seconds"):
        wait_until_resolvable("no-such-host.invalid", "MASTER_ADDR", 0.8, interval=interval)
    assert least <= len(lines) <= most
    assert all("for the name of the main host no-such-host.invalid to resolve, for " in line for line in lines)
