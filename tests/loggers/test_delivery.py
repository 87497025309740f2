"""What is sent when to a server that fails, refuses and answers again."""

import os
import time

import pytest

from lightning_sm._loggers.delivery import Delivery, DeliveryThread
from tests.projects.container import log_lines


class Metric:
    def __init__(self, key):
        self.key = key


class Param(Metric):
    pass


class Refusal(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class Server:
    """Takes values unless it is down, and refuses those that have a bad name."""

    def __init__(self, **options):
        self.now, self.down, self.requests, self.attempts = 0.0, False, [], 0
        self.delivery = Delivery("MLflow", self.send, clock=lambda: self.now, **options)

    def send(self, run_id, values):
        self.attempts += 1
        if self.down:
            raise ConnectionError("no route")
        if any(value.key.startswith("bad") for value in values):
            raise Refusal("a name")
        self.requests.append((run_id, [value.key for value in values]))

    def add(self, *keys, run_id="r", kind=Metric):
        self.delivery.add(run_id, [kind(key) for key in keys])

    @property
    def received(self):
        return [key for _, keys in self.requests for key in keys]


@pytest.fixture
def lines():
    with log_lines() as found:
        yield found


def test_each_call_is_one_request(lines):
    server = Server()
    server.add("a", "b")
    server.add("c")
    assert server.requests == [("r", ["a", "b"]), ("r", ["c"])]
    server.delivery.finish()
    assert lines == []


def test_nothing_is_lost_in_an_outage(lines):
    server = Server(pause=30)
    server.down = True
    server.add("a")
    for now in (1, 29):
        server.now = now
        server.add(f"at {now}")
    assert server.attempts == 1  # the training does not wait for a server that is away
    server.now = 31
    server.add("still away")
    assert server.attempts == 2
    server.down, server.now = False, 62
    server.add("b", run_id="other")
    assert server.requests == [("r", ["a", "at 1", "at 29", "still away"]), ("other", ["b"])]
    server.delivery.finish()
    assert len(lines) == 2, lines
    assert lines[0].startswith(
        "MLflow fails, training goes on. Metrics are kept, and sent again every 30 s: Connection"
    )
    assert lines[1] == "MLflow answers again; what was kept is logged now."


def test_what_is_lost_is_counted(lines):
    server = Server(limit=3)
    server.down = True
    for key in "abcdef":
        server.add(key)
    assert server.delivery.lost == 3
    server.delivery.finish()
    assert lines[-1] == "6 values were not logged to MLflow."
    server.down = False
    server.add("g")
    server.delivery.finish()
    assert server.received == ["g"]
    assert len(lines) == 3, lines


def test_the_newest_are_kept():
    server = Server(limit=2, pause=10)
    server.down = True
    for key in "abcd":
        server.add(key)
    server.down = False
    server.delivery.finish()
    assert server.received == ["c", "d"]


def test_only_what_is_refused_is_left_out(lines):
    server = Server()
    server.add("a", "bad name", "b", kind=Param)
    server.add("bad again", "c")
    assert server.received == ["a", "b", "c"]
    assert not server.delivery.is_failing
    server.delivery.finish()
    assert lines == [
        "MLflow refuses param 'bad name', which is left out: Refusal: a name HINT: Rename or shorten it; a parameter "
        "keeps the value of the run's first start.",
        "2 values were not logged to MLflow.",
    ]


def test_an_outage_begins_while_values_are_sent_one_by_one():
    server = Server()
    send = server.delivery._send

    def fail_after_refusal(run_id, values):
        if len(values) == 1:
            server.down = True
        send(run_id, values)

    server.delivery._send = fail_after_refusal
    server.add("bad", *(f"m{number}" for number in range(50)))
    assert server.attempts == 2  # and not one for each value
    assert server.delivery.lost == 51


@pytest.mark.parametrize(("kind", "sizes"), [(Metric, [1000, 500]), (Param, [100] * 15)])
def test_requests_are_no_larger_than_mlflow_takes(kind, sizes):
    server = Server()
    server.add(*(str(number) for number in range(1500)), kind=kind)
    assert [len(keys) for _, keys in server.requests] == sizes


def test_kinds_and_runs_are_not_mixed():
    server = Server()
    server.delivery.add("r", [Metric("a"), Param("b"), Metric("c")])
    assert server.requests == [("r", ["a"]), ("r", ["b"]), ("r", ["c"])]


def test_an_attempt_never_raises(lines):
    delivery = Server().delivery

    def fail():
        raise OSError("x" * 1000)

    assert delivery.attempt(lambda: 5) == 5
    assert delivery.attempt(fail) is None
    assert delivery.attempt(fail) is None
    assert len(lines) == 1
    assert len(lines[0]) < 600
    delivery.finish()
    assert lines[1] == "2 values were not logged to MLflow."


def test_a_name_that_is_refused_is_not_sent_for_ever():
    server = Server()
    for _ in range(20):
        server.add("a", "bad name", "b")
    assert server.received == ["a", "b"] * 20
    assert server.attempts == 3 * 4 + 17  # a batch and its three values; then batches that are taken
    server.delivery.finish()
    assert server.delivery.lost == 0


def test_passwords_are_not_in_the_log(lines):
    delivery = Server().delivery

    def fail():
        raise OSError("no answer from https://me:hunter2pw@mlflow.example/api?token=abcdefgh")

    delivery.attempt(fail)
    assert "mlflow.example" in lines[0]
    assert "hunter2pw" not in lines[0]
    assert "abcdefgh" not in lines[0]


class TestThread:
    def test_no_step_waits_for_a_slow_server(self, lines):
        server, took = Server(), []
        send = server.delivery._send
        server.delivery._send = lambda *args: (time.sleep(0.2), send(*args))
        thread = DeliveryThread(server.delivery)
        for number in range(100):
            started = time.perf_counter()
            thread.add("r", [Metric(f"m{number}"), Metric("x")])
            took.append(time.perf_counter() - started)
        thread.finish(lambda: server.requests.append(("r", ["ended"])))
        assert sorted(took)[50] < 0.001
        assert [key for key in server.received if key != "x"] == [*(f"m{number}" for number in range(100)), "ended"]
        assert len(server.requests) < 20
        assert lines == []

    def test_the_end_waits_for_a_server_that_hangs_but_not_for_ever(self, lines):
        server, ended = Server(), []
        server.delivery._send = lambda *_: time.sleep(1.5)
        thread = DeliveryThread(server.delivery, seconds=0.3)
        thread.add("r", [Metric("a")])
        started = time.monotonic()
        assert thread.call(lambda: 5, 0.1) is None
        thread.finish(lambda: ended.append(1))
        thread._at_exit()
        assert time.monotonic() - started < 1.2
        assert ended == []
        assert len(lines) == 1
        assert lines[0].startswith(
            "MLflow does not answer: what was logged last, and how the run ended, may be missing"
        )

    def test_what_a_function_returns_comes_after_what_was_added(self):
        server = Server()
        thread = DeliveryThread(server.delivery)
        thread.add("r", [Metric("a")])
        assert thread.call(lambda: list(server.received), 5) == ["a"]

    def test_what_is_logged_after_the_end_is_sent_before_the_process_ends(self):
        server = Server()
        thread = DeliveryThread(server.delivery)
        thread.finish()
        thread.add("r", [Metric("a")])
        thread._at_exit()
        assert server.received == ["a"]

    def test_a_forked_process_has_a_thread_of_its_own(self):
        server = Server()
        thread = DeliveryThread(server.delivery)
        thread.add("r", [Metric("a")])
        thread.finish()
        child = os.fork()
        if child == 0:
            thread.add("r", [Metric("b")])
            thread.finish()
            os._exit(0 if server.received == ["a", "b"] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert server.received == ["a"]

    def test_a_server_that_fails(self, lines):
        server = Server()
        server.down = True
        thread = DeliveryThread(server.delivery)
        thread.add("r", [Metric("a")])
        assert thread.call(lambda: 1 / 0, 5) is None
        server.down = False
        thread.add("r", [Metric("b")])
        thread.finish()
        assert server.received == ["a", "b"]
        assert [line.split(",")[0] for line in lines] == [
            "MLflow fails",
            "MLflow answers again; what was kept is logged now.",
        ]
