"""What a failure server accepts from connections."""

import contextlib
import time

import pytest

from lightning_sm._failure.connection import MAX_LINE, MessageKind
from tests.failure.ranks import REASON, Rank, quiet, until

_HELLO = {"kind": "hello", "token": "token", "node_rank": 1, "local_rank": 0, "pid": 5, "phase": "training"}


def hello(**changes):
    return {**_HELLO, **changes}


@pytest.mark.parametrize(
    "message",
    [
        hello(token="wrong"),
        hello(token=None),
        hello(token="\ud800"),
        hello(node_rank=3),
        hello(node_rank=-1),
        hello(node_rank=True),
        hello(local_rank="0"),
        hello(local_rank=1 << 40),
        hello(kind="failed", reason=REASON.to_message()),
    ],
    ids=str,
)
def test_a_connection_that_does_not_authenticate_is_closed(cluster, message):
    ranks = cluster.start(2)
    pending = cluster.connect()
    pending.send(**message)
    until(lambda: pending.receive() is None)
    pending.close()
    assert quiet(ranks, 0.1)


@pytest.mark.parametrize(
    "line", [b"[" * 20_000 + b"\n", b"[]\n", b"\xff\n", b"GET / HTTP/1.1\r\n", b"1" * 30_000 + b"\n", b"x" * 100_000]
)
def test_an_invalid_line_closes_its_own_connection_only(cluster, line):
    ranks = cluster.start(2)
    for sender in (cluster.connect(), cluster.connect()):
        # Also of one that knows the token.
        if sender.fileno() % 2:
            sender.send(**hello(local_rank=7, phase="idle"))
        with pytest.raises(OSError), sender.socket as raw:  # noqa: PT012
            raw.sendall(line)
            while raw.recv(4096):
                continue
            raise ConnectionResetError
    ranks[1].monitor.publish(REASON)
    assert ranks[0].received == [REASON]


def test_an_endless_line_closes_its_connection(cluster):
    sender = cluster.connect()
    sender.send(**hello(phase="idle"))
    until(lambda: cluster.server._members)
    with contextlib.suppress(ConnectionError):
        sender.socket.sendall(b"x" * (2 * MAX_LINE))
    until(lambda: not cluster.server._members)
    sender.close()


def test_workers_of_the_next_attempt_are_refused_by_a_server_that_closes(cluster, in_environ):
    in_environ({"TORCHELASTIC_MAX_RESTARTS": "2"})
    (rank,) = cluster.start(1)
    cluster.server._closed_at = time.monotonic()
    sender = cluster.connect()
    sender.send(**hello())
    until(lambda: sender.receive() is None, 2)
    sender.close()
    assert quiet([rank], 0.1)


def test_nothing_is_sent_before_authentication(cluster):
    ranks = cluster.start(2)
    pending = cluster.connect()
    until(lambda: cluster.server._pending)
    ranks[0].monitor.set_training(False)
    ranks[1].monitor.publish(REASON)
    for rank in ranks:
        rank.monitor.stop()
    cluster.server.close()
    with pending.socket as raw:
        assert raw.recv(4096) == b""


def test_unauthenticated_connections_are_limited_in_number_and_time(cluster, monkeypatch):
    ranks = cluster.start(2)
    monkeypatch.setattr("lightning_sm._failure.server._MAX_PENDING", 4)
    crowd = [cluster.connect() for _ in range(20)]
    until(lambda: 0 < len(cluster.server._pending) <= 4)
    # A rank comes in all the same.
    cluster.ranks.append(Rank(cluster, 2))
    monkeypatch.setattr("lightning_sm._failure.server._HELLO_TIMEOUT", 0.1)
    until(lambda: not cluster.server._pending)
    for pending in crowd:
        pending.close()
    ranks[1].monitor.publish(REASON)
    assert cluster.ranks[2].received == [REASON]


def test_fields_of_a_failure_are_validated(cluster):
    ranks = cluster.start(1)
    forger = cluster.connect()
    forger.send(**hello(host="algo-2\x1b[31m\n", rank=1))
    reason = {
        "cause": "\x1b[2J\x1b[31mowned\r\nSUCCESS \udcff\u202e" + "x" * 5000,
        "rank": -5,
        "host": ["algo-9"],
        "frames": ["a.py:1 in \x07f", 3, None],
        "last_error": {"a": 1},
        "hint": "h" * 5000,
        "is_loss": "yes",
        "unknown": 1,
    }
    forger.send(MessageKind.FAILED, reason=reason)
    until(lambda: ranks[0].received)
    (received,) = ranks[0].received
    assert received.cause.startswith("owned SUCCESS \\udcff\\u202exxx")
    assert (received.rank, received.host, received.frames, received.last_error) == (
        None,
        None,
        ("a.py:1 in \\x07f",),
        None,
    )
    assert max(len(received.cause), len(received.hint)) <= 1024
    assert received.is_loss is False
    forger.close()


@pytest.mark.parametrize("reason", [None, "text", {}, {"cause": 3}, {"cause": " \n"}, []], ids=str)
def test_an_invalid_reason_is_ignored(cluster, reason):
    ranks = cluster.start(1)
    sender = cluster.connect()
    sender.send(**hello(phase="idle"))
    sender.send(MessageKind.FAILED, reason=reason)
    sender.send(MessageKind.STATE, phase=["training"], rank={})
    assert quiet(ranks, 0.3)
    sender.close()
    assert quiet(ranks, 0.3)


def test_who_has_joined(cluster):
    first = Rank(cluster, 0, joined=False)
    second = Rank(cluster, 1, joined=False, joining=False)
    cluster.ranks = [first, second]
    until(lambda: len(cluster.phases()) == 2)
    state = first.monitor.ask_who_has_joined(1)
    assert (str(state.joined), str(state.starting), state.hosts) == ("0", "1", ("algo-1", "algo-2"))
    second.monitor.set_joining(1, 3)
    until(lambda: str(first.monitor.ask_who_has_joined(1).joined) == "0-1")
    second.die()
    until(lambda: str(first.monitor.ask_who_has_joined(1).joined) == "0")


def test_processes_that_do_not_know_their_rank_yet(cluster):
    (rank,) = cluster.start(1)
    others = [cluster.connect() for _ in range(2)]
    for local_rank, other in enumerate(others):
        other.send(**hello(local_rank=local_rank, rank=None, phase="starting"))
    until(lambda: len(cluster.phases()) == 3)
    assert str(rank.monitor.ask_who_has_joined(2).starting) == "2-3"
    # What a message says of sizes may be anything.
    for size in ("2", None, -1, 1 << 70):
        assert rank.monitor.ask_who_has_joined(size) is not None
    for other in others:
        other.close()


def test_a_server_that_does_not_answer(cluster, monkeypatch):
    (rank,) = cluster.start(1)
    monkeypatch.setattr(cluster.server, "_handle", lambda member, message: None)
    assert rank.monitor.ask_who_has_joined(1, timeout=0.2) is None
    rank.die()
