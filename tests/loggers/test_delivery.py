"""What is sent when to a server that fails, refuses and answers again."""

import pytest

from lightning_sm._loggers.delivery import Delivery
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
        "MLflow refuses param 'bad name', which is left out: Refusal: a name",
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
    assert len(lines[0]) < 500
    delivery.finish()
    assert lines[1] == "2 values were not logged to MLflow."
