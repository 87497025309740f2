"""What a failure server accepts from connections, and what is read of a message."""

import contextlib
import json
import socket

import pytest

from tests.failure.ranks import REASON, quiet
from tests.helpers.processes import until

_HELLO = {"kind": "hello", "token": "token", "node_rank": 1, "local_rank": 0, "pid": 5}


@pytest.fixture
def connect(cluster):
    """Connect to the server of a cluster, and send lines."""
    with contextlib.ExitStack() as connections:

        def connect(*lines):
            address = cluster.address.host, cluster.address.ports[0]
            made = connections.enter_context(socket.create_connection(address, timeout=10))
            for line in lines:
                made.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
            return made

        yield connect


def test_a_connection_that_does_not_authenticate_is_closed_and_told_nothing(cluster, connect):
    ranks = cluster.start(2)
    for change in (
        {"token": "wrong"},
        {"token": None},
        {"token": "\ud800"},
        {"node_rank": 3},
        {"node_rank": -1},
        {"node_rank": True},
        {"local_rank": "0"},
        {"local_rank": 1 << 40},
        {"kind": "state", "reason": REASON},
    ):
        assert connect({**_HELLO, **change}).recv(4096) == b""
    assert connect(b"GET / HTTP/1.1\r\n\r\n").recv(4096) == b""
    assert quiet(ranks, 0)


@pytest.mark.parametrize("is_member", [True, False])
def test_an_invalid_line_closes_its_own_connection_only(cluster, connect, is_member):
    first, second = cluster.start(2)
    before = [{**_HELLO, "local_rank": 7}] if is_member else []
    for line in (b"[" * 20_000 + b"\n", b"[]\n", b"\xff\n", b"1" * 30_000 + b"\n", b"x" * 300_000):
        # Until it is closed, whatever was sent before; else this times out.
        with contextlib.suppress(ConnectionError):
            made = connect(*before, line)
            while made.recv(4096):
                continue
    second.monitor.publish(REASON)
    assert first.reason == REASON


def test_a_forged_reason_is_one_line_that_can_be_shown_and_an_invalid_one_none(cluster, connect):
    (rank,) = cluster.start(1, 2)
    for invalid in (None, 3, {}, " \n", []):
        connect(_HELLO, {"kind": "state", "phase": ["training"], "rank": {}, "reason": invalid})
    assert quiet([rank], 0.5)
    reason = "\x1b[2J\x1b[31mowned\r\nSUCCESS \udcff\u202e" + "x" * 5000
    connect({**_HELLO, "host": "algo-2\x1b[31m\n"}, {"kind": "state", "reason": reason})
    until(lambda: rank.reason)
    assert rank.reason.startswith("owned SUCCESS \\udcff\\u202exxx")
    assert len(rank.reason) <= 1024
