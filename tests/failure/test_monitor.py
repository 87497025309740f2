"""The failure server and the monitors of several ranks, in one process."""

import contextlib
import os
import socket
import threading
import time

import pytest

from lightning_sm._failure.connection import (
    MAX_LINE,
    Connection,
    MessageKind,
    ProcessInfo,
    decode_message,
    early_exit_reason,
    loss_reason,
)
from lightning_sm._failure.monitor import FailureMonitor
from lightning_sm._failure.reason import FailureReason
from lightning_sm._failure.rendezvous import Address
from lightning_sm._failure.server import FailureServer

_REASON = FailureReason("KeyError: 'x'", 1, "algo-2")


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def process(rank):
    return ProcessInfo(rank, 0, f"algo-{rank + 1}", rank, 100 + rank)


class Rank:
    """A rank with its monitor, and what came of it."""

    def __init__(self, job, rank, exit_timeout=60.0, reconnect_timeout=0.3, joined=True, joining=True):
        self.told, self.taken_back, self.ended = [], [], []
        self.joined = joined
        self.monitor = FailureMonitor(
            process(rank),
            3,
            job.address,
            self.told.append,
            self.taken_back.append,
            exit_timeout=exit_timeout,
            reconnect_timeout=reconnect_timeout,
            has_joined=lambda: self.joined,
            exit_process=self.ended.append,
        )
        self.monitor.start()
        self.monitor._started.set()
        if joining:
            self.monitor.set_joining(rank, 3)
        until(lambda: self.monitor._connection is not None)

    def die(self):
        """End the connection without a word, as a process that is killed does."""
        self.monitor._stopped.set()
        self.monitor._connection.shutdown()


class JobOfRanks:
    def __init__(self):
        self.ranks = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = Address("127.0.0.1", (port,), "token", 3)
        self.server = FailureServer(self.address, early_exit_delay=0.5)
        self.server.start()
        until(lambda: self.server._listener is not None)

    def start(self, count=3, **options):
        self.ranks = [Rank(self, rank, **options) for rank in range(count)]
        until(lambda: self.phases() == [rank.monitor.phase for rank in self.ranks])
        return self.ranks

    def phases(self):
        members = sorted(list(self.server._members.values()), key=lambda member: member.process.slot)
        return [member.phase for member in members]

    def connect(self):
        return Connection(socket.create_connection(("127.0.0.1", self.address.ports[0])))

    def kill_server(self):
        """End the server as its host does: without a word."""
        self.server._selector.unregister(self.server._listener)
        self.server._listener.close()
        members = list(self.server._members.values())
        for member in members:
            member.has_left = True
        for member in members:
            member.connection.shutdown()

    def end(self):
        for rank in self.ranks:
            rank.monitor.stop()
        self.server.close()


@pytest.fixture
def job():
    made = JobOfRanks()
    yield made
    made.end()
    assert not made.server._thread.is_alive()
    assert not any(rank.monitor._thread.is_alive() for rank in made.ranks)


def quiet(ranks, seconds=0.5):
    time.sleep(seconds)
    return not any(rank.told or rank.ended for rank in ranks)


def test_every_rank_hears_of_the_first_failure_before_its_process_goes_on(job):
    ranks = job.start()
    ranks[1].monitor.publish(_REASON)
    assert ranks[0].told == ranks[2].told == [_REASON]
    assert ranks[1].told == []
    ranks[2].monitor.publish(FailureReason("RuntimeError: Connection closed by peer", 2, "algo-3"))
    assert ranks[0].told == [_REASON]


def test_of_two_failures_the_second_hears_of_the_first(job):
    ranks = job.start()
    ranks[1].monitor.publish(_REASON)
    assert ranks[2].monitor.wait_for_failure(2) == _REASON


def test_who_comes_late_hears_of_it_too(job):
    second = job.start(2)[1]
    second.monitor.publish(_REASON)
    job.ranks.append(Rank(job, 2))
    until(lambda: job.ranks[2].told == [_REASON])


def test_before_the_ranks_have_joined_a_failure_waits_for_hosts_that_start_later(job):
    ranks = job.start(2, joined=False, joining=False)
    waiting = threading.Thread(target=ranks[1].monitor.publish, args=(_REASON,))
    waiting.start()
    until(lambda: ranks[0].told == [_REASON])
    waiting.join(0.3)
    assert waiting.is_alive()
    job.ranks.append(Rank(job, 2, joined=False, joining=False))
    until(lambda: job.ranks[2].told == [_REASON])
    waiting.join(2)
    assert not waiting.is_alive()


def test_who_is_gone_before_it_joined_is_missed_by_those_who_wait_for_it(job):
    ranks = job.start(joined=False, joining=False)
    ranks[1].die()
    assert quiet(ranks, 1.2)
    ranks[2].monitor.set_joining(2, 3)
    until(lambda: ranks[0].told == ranks[2].told == [loss_reason(process(1))])


def test_who_leaves_before_it_joined_is_missed_by_those_who_wait_for_it(job):
    ranks = job.start(joined=False)
    ranks[1].monitor.stop()
    until(lambda: ranks[0].told == ranks[2].told == [early_exit_reason(process(1))])


def test_a_stop_of_all_before_they_joined_is_no_failure(job):
    # SIGTERM ends them one after the other.
    ranks = job.start(joined=False)
    for rank in ranks:
        rank.die()
        time.sleep(0.1)
    assert quiet(ranks, 1.0)


def test_who_is_gone_while_others_train_had_joined_too(job):
    ranks = job.start(joined=False)
    ranks[0].joined = True
    until(lambda: job.phases()[0] == "training")
    ranks[1].die()
    until(lambda: ranks[2].told == [loss_reason(process(1))], 0.5)


def test_a_program_that_a_rank_started_is_not_missed(job):
    ranks = job.start(joined=False, joining=False)
    other = job.connect()
    other.send(MessageKind.HELLO, token="token", node_rank=1, local_rank=0, pid=7, phase="starting")
    until(lambda: len(job.server._members) == 4)
    other.close()
    ranks[0].monitor.set_joining(0, 3)
    assert quiet(ranks, 1.2)


def test_a_rank_that_is_still_stuck_after_the_grace_is_ended(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[1].monitor.publish(_REASON)
    until(lambda: ranks[0].ended == [1])
    until(lambda: ranks[2].ended == [1])
    assert ranks[1].ended == []


def test_a_rank_that_waits_to_join_is_ended(job):
    ranks = job.start(exit_timeout=0.1, joined=False)
    ranks[1].monitor.publish(_REASON)
    until(lambda: ranks[0].ended == ranks[2].ended == [1])


def test_a_rank_that_is_not_training_is_told_and_not_ended(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[0].monitor.set_training(False)
    ranks[1].monitor.publish(_REASON)
    until(lambda: ranks[2].ended == [1])
    assert ranks[0].told == [_REASON]
    assert ranks[0].ended == []
    # But as soon as it waits for the others again.
    ranks[0].monitor.set_training(True)
    until(lambda: ranks[0].ended == [1])


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_missed_at_once(job, killed):
    ranks = job.start()
    ranks[killed].die()
    rest = [rank for rank in ranks if rank is not ranks[killed]]
    until(lambda: all(rank.told for rank in rest), 1.0)
    host = f"algo-{killed + 1}"
    assert [rank.told for rank in rest] == [[loss_reason(process(killed))]] * 2
    assert str(rest[0].told[0]).startswith(f"Rank {killed} on {host} was killed: it exited without an exception (SIG")


def test_a_rank_that_has_left_is_not_missed(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[1].monitor.stop()
    assert quiet(ranks)


def test_a_rank_that_had_trained_is_not_missed(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[1].monitor.set_training(False)
    time.sleep(0.1)
    ranks[1].die()
    assert quiet(ranks)


def test_rank_zero_may_be_through_first(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[0].monitor.stop()
    job.server.close()
    assert quiet(ranks, 1.0)


def test_rank_zero_had_trained_and_ended_without_a_word(job):
    ranks = job.start(exit_timeout=0.1)
    ranks[0].monitor.set_training(False)
    until(lambda: ranks[1].monitor._main_phase == ranks[2].monitor._main_phase == "idle")
    job.kill_server()
    assert quiet(ranks[1:], 1.0)


def test_the_host_of_rank_zero_is_gone(job):
    ranks = job.start(exit_timeout=0.1)
    job.kill_server()
    for rank in ranks[1:]:
        until(lambda rank=rank: rank.told == [loss_reason(ProcessInfo(0, 0, "127.0.0.1", 0))])
        until(lambda rank=rank: rank.ended == [1])


def test_a_closing_server_still_tells_who_was_killed_last(job):
    ranks = job.start()
    ranks[0].die()
    job.server.close()
    assert ranks[1].told == ranks[2].told == [loss_reason(process(0))]


def test_a_rank_whose_connection_only_was_lost_is_back(job):
    ranks = job.start(exit_timeout=1)
    ranks[1].monitor._connection.shutdown()
    until(lambda: ranks[0].taken_back == [loss_reason(process(1))])
    until(lambda: ranks[2].taken_back == [loss_reason(process(1))])
    assert ranks[0].monitor.first_failure is None
    time.sleep(1.3)
    assert not any(rank.ended for rank in ranks)
    # And it is one of them again.
    ranks[1].monitor.publish(_REASON)
    assert ranks[0].told[-1] == _REASON


def test_a_failure_of_a_rank_that_has_not_connected_yet(job):
    (first,) = job.start(1)
    late = FailureMonitor(process(1), 2, job.address, print, print, exit_process=print)
    late.start()
    late.publish(_REASON)
    late.stop()
    assert first.told == [_REASON]


def test_a_server_that_was_through_before_this_rank_found_it(job):
    job.server.close()
    told = []
    monitor = FailureMonitor(
        process(1), 2, job.address, told.append, told.append, reconnect_timeout=0.1, exit_process=told.append
    )
    monitor.start()
    time.sleep(0.6)
    monitor.stop()
    assert told == []


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
        hello(kind="failed", reason=_REASON.to_message()),
    ],
    ids=str,
)
def test_a_stranger_is_not_listened_to(job, message):
    ranks = job.start(2)
    stranger = job.connect()
    stranger.send(**message)
    until(lambda: stranger.receive() is None)
    stranger.close()
    assert quiet(ranks, 0.1)


@pytest.mark.parametrize(
    "line", [b"[" * 20_000 + b"\n", b"[]\n", b"\xff\n", b"GET / HTTP/1.1\r\n", b"1" * 30_000 + b"\n", b"x" * 100_000]
)
def test_a_line_that_is_no_message_ends_its_connection_only(job, line):
    ranks = job.start(2)
    for sender in (job.connect(), job.connect()):
        # Also of one that knows the token.
        if sender.fileno() % 2:
            sender.send(**hello(local_rank=7, phase="idle"))
        with pytest.raises(OSError), sender.socket as raw:  # noqa: PT012
            raw.sendall(line)
            while raw.recv(4096):
                continue
            raise ConnectionResetError
    ranks[1].monitor.publish(_REASON)
    assert ranks[0].told == [_REASON]


def test_brackets_deeper_than_the_interpreter_goes_are_no_message():
    assert decode_message(b"[" * 20_000) is None


def test_a_line_without_an_end_is_not_kept(job):
    sender = job.connect()
    sender.send(**hello(phase="idle"))
    until(lambda: job.server._members)
    with contextlib.suppress(ConnectionError):
        sender.socket.sendall(b"x" * (2 * MAX_LINE))
    until(lambda: not job.server._members)
    sender.close()


def test_a_stranger_hears_nothing(job):
    ranks = job.start(2)
    stranger = job.connect()
    until(lambda: job.server._pending)
    ranks[0].monitor.set_training(False)
    ranks[1].monitor.publish(_REASON)
    for rank in ranks:
        rank.monitor.stop()
    job.server.close()
    with stranger.socket as raw:
        assert raw.recv(4096) == b""


def test_strangers_are_few_and_short_of_time(job, monkeypatch):
    ranks = job.start(2)
    monkeypatch.setattr("lightning_sm._failure.server._MAX_PENDING", 4)
    crowd = [job.connect() for _ in range(20)]
    until(lambda: 0 < len(job.server._pending) <= 4)
    # A rank comes in all the same.
    job.ranks.append(Rank(job, 2))
    monkeypatch.setattr("lightning_sm._failure.server._HELLO_TIMEOUT", 0.1)
    until(lambda: not job.server._pending)
    for stranger in crowd:
        stranger.close()
    ranks[1].monitor.publish(_REASON)
    assert job.ranks[2].told == [_REASON]


def test_what_a_rank_tells_is_cleaned(job):
    ranks = job.start(1)
    forger = job.connect()
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
    until(lambda: ranks[0].told)
    (told,) = ranks[0].told
    assert told.cause.startswith("owned SUCCESS \\udcff\\u202exxx")
    assert (told.rank, told.host, told.frames, told.last_error) == (None, None, ("a.py:1 in \\x07f",), None)
    assert max(len(told.cause), len(told.hint)) <= 1024
    assert told.is_loss is False
    forger.close()


@pytest.mark.parametrize("reason", [None, "text", {}, {"cause": 3}, {"cause": " \n"}, []], ids=str)
def test_a_reason_that_says_nothing_is_none(job, reason):
    ranks = job.start(1)
    sender = job.connect()
    sender.send(**hello(phase="idle"))
    sender.send(MessageKind.FAILED, reason=reason)
    sender.send(MessageKind.STATE, phase=["training"], rank={})
    assert quiet(ranks, 0.3)
    sender.close()
    assert quiet(ranks, 0.3)


def test_a_monitor_believes_no_other_program():
    with socket.create_server(("127.0.0.1", 0)) as other:
        told = []
        address = Address("127.0.0.1", (other.getsockname()[1],), "token", 2)
        monitor = FailureMonitor(process(1), 2, address, told.append, told.append, exit_process=told.append)
        monitor.start()
        monitor._started.set()
        connection, _ = other.accept()
        connection.sendall(b'{"kind": "failed", "reason": {"cause": "forged"}}\n')
        time.sleep(0.3)
        assert monitor._connection is None
        monitor.stop()
        connection.close()
    assert told == []


def test_a_forks_child_keeps_no_connection(job):
    ranks = job.start(2)
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    ranks[1].die()
    until(lambda: ranks[0].told, 1.0)
    os.kill(child, 9)
    os.waitpid(child, 0)
