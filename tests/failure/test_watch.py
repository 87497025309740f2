"""The hub and the watches of several ranks, in one process."""

import contextlib
import os
import socket
import threading
import time

import pytest

from lightning_sm._failure._hub import Hub, loss_of
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._watch import HubAddress, Watch
from lightning_sm._failure._wire import Wire

_REASON = Reason("KeyError: 'x'", 1, "algo-2")


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Rank:
    """A rank with its watch, and what came of it."""

    def __init__(self, job, rank, grace=60.0, patience=0.3):
        self.told, self.taken_back, self.ended = [], [], []
        self.watch = Watch(
            rank,
            3,
            f"algo-{rank + 1}",
            lambda stopped: job.address,
            self.told.append,
            self.taken_back.append,
            grace=grace,
            patience=patience,
            end=self.ended.append,
        )
        self.watch.start()
        until(lambda: self.watch._wire is not None)

    def die(self):
        """End the connection without a word, as a process that is killed does."""
        self.watch._stopped.set()
        self.watch._wire.hang_up()


class JobOfRanks:
    def __init__(self):
        self.hub = Hub()
        self.ranks = []
        self.address = HubAddress("127.0.0.1", self.hub.start(), self.hub.token, "algo-1")

    def start(self, count=3, **options):
        self.ranks = [Rank(self, rank, **options) for rank in range(count)]
        return self.ranks

    def kill_hub(self):
        """End the hub as a process that is killed ends it: without a word."""
        self.hub._selector.unregister(self.hub._server)
        self.hub._server.close()
        members = list(self.hub._members.values())
        for member in members:
            member.has_left = True
        for member in members:
            member.wire.hang_up()

    def end(self):
        for rank in self.ranks:
            rank.watch.stop()
        self.hub.close()


@pytest.fixture
def job():
    made = JobOfRanks()
    yield made
    made.end()
    assert not made.hub._thread.is_alive()
    assert not any(rank.watch._thread.is_alive() for rank in made.ranks)


def quiet(ranks, seconds=0.5):
    time.sleep(seconds)
    return not any(rank.told or rank.ended for rank in ranks)


def test_every_rank_hears_of_the_first_failure_before_its_process_goes_on(job):
    ranks = job.start()
    ranks[1].watch.publish(_REASON)
    assert ranks[0].told == ranks[2].told == [_REASON]
    assert ranks[1].told == []
    ranks[2].watch.publish(Reason("RuntimeError: Connection closed by peer", 2, "algo-3"))
    assert ranks[0].told == [_REASON]


def test_of_two_failures_the_second_hears_of_the_first(job):
    ranks = job.start()
    ranks[1].watch.publish(_REASON)
    assert ranks[2].watch.wait_for_first(2) == _REASON


def test_who_comes_late_hears_of_it_too(job):
    second = job.start(2)[1]
    second.watch.publish(_REASON)
    job.ranks.append(Rank(job, 2))
    until(lambda: job.ranks[2].told == [_REASON])


def test_a_rank_that_is_still_stuck_after_the_grace_is_ended(job):
    ranks = job.start(grace=0.1)
    ranks[1].watch.publish(_REASON)
    until(lambda: ranks[0].ended == [1])
    until(lambda: ranks[2].ended == [1])
    assert ranks[1].ended == []


def test_a_rank_that_is_not_training_is_told_and_not_ended(job):
    ranks = job.start(grace=0.1)
    ranks[0].watch.set_training(False)
    ranks[1].watch.publish(_REASON)
    until(lambda: ranks[2].ended == [1])
    assert ranks[0].told == [_REASON]
    assert ranks[0].ended == []
    # But as soon as it waits for the others again.
    ranks[0].watch.set_training(True)
    until(lambda: ranks[0].ended == [1])


def test_a_killed_rank_is_missed_at_once(job):
    ranks = job.start()
    ranks[1].die()
    until(lambda: ranks[0].told and ranks[2].told, 1.0)
    assert ranks[0].told == ranks[2].told == [loss_of(1, "algo-2")]
    assert str(ranks[0].told[0]).startswith("Rank 1 on algo-2 was killed: it ended without an exception (SIGKILL")


def test_a_rank_that_has_left_is_not_missed(job):
    ranks = job.start(grace=0.1)
    ranks[1].watch.stop()
    assert quiet(ranks)


def test_a_rank_that_had_trained_is_not_missed(job):
    ranks = job.start(grace=0.1)
    ranks[1].watch.set_training(False)
    time.sleep(0.1)
    ranks[1].die()
    assert quiet(ranks)


def test_rank_zero_may_be_through_first(job):
    ranks = job.start(grace=0.1)
    ranks[0].watch.stop()
    job.hub.close()
    assert quiet(ranks, 1.0)


def test_rank_zero_had_trained_and_ended_without_a_word(job):
    ranks = job.start(grace=0.1)
    ranks[0].watch.set_training(False)
    until(lambda: not ranks[1].watch._main_is_training and not ranks[2].watch._main_is_training)
    job.kill_hub()
    assert quiet(ranks[1:], 1.0)


def test_rank_zero_was_killed(job):
    ranks = job.start(grace=0.1)
    job.kill_hub()
    for rank in ranks[1:]:
        until(lambda rank=rank: rank.told == [loss_of(0, "algo-1")])
        until(lambda rank=rank: rank.ended == [1])


def test_a_rank_whose_connection_only_was_lost_is_back(job):
    ranks = job.start(grace=3)
    ranks[1].watch._wire.hang_up()
    until(lambda: ranks[0].taken_back == [loss_of(1, "algo-2")])
    until(lambda: ranks[2].taken_back == [loss_of(1, "algo-2")])
    assert ranks[0].watch.first is None
    time.sleep(3.2)
    assert not any(rank.ended for rank in ranks)
    # And it is one of them again.
    ranks[1].watch.publish(_REASON)
    assert ranks[0].told[-1] == _REASON


def test_a_failure_of_a_rank_that_fails_right_after_joining(job):
    (first,) = job.start(1)
    found = threading.Event()
    late = Watch(1, 2, "algo-2", lambda stopped: found.wait(5) and job.address, print, print, end=print)
    late.start()
    threading.Timer(0.3, found.set).start()
    late.publish(_REASON)
    late.stop()
    assert first.told == [_REASON]


def test_without_a_hub_nothing_is_watched():
    told = []
    watch = Watch(0, 2, "algo-1", lambda stopped: None, told.append, told.append)
    watch.start()
    until(lambda: not watch._thread.is_alive())
    assert watch.wait_for_first(5) is None
    watch.publish(_REASON)
    watch.stop()
    assert told == []


def test_a_hub_that_was_through_before_this_rank_found_it(job):
    address = job.address
    job.hub.close()
    told = []
    watch = Watch(1, 2, "algo-2", lambda stopped: address, told.append, told.append, patience=0.1, end=told.append)
    watch.start()
    until(lambda: not watch._thread.is_alive())
    assert told == []


def test_a_stranger_is_not_listened_to(job):
    ranks = job.start(2)
    for token in ("wrong", None):
        stranger = Wire(socket.create_connection(("127.0.0.1", job.address.port)))
        stranger.send("hello", token=token, rank=5, host="x", is_training=True)
        stranger.send("failed", reason=_REASON.as_message())
        until(lambda stranger=stranger: stranger.receive() is None)
        stranger.close()
    with contextlib.closing(socket.create_connection(("127.0.0.1", job.address.port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100_000)
    assert quiet(ranks)


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
