"""What is sent when to an MLflow server that fails, refuses and answers again."""

import os
import time
from types import SimpleNamespace

from lightning_sm._observe.mlflow import Sender
from tests.helpers.processes import until

NAME = "MLflow at http://mlflow.example"


class Refusal(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class Client:
    """Takes values unless it is down, and refuses those that have a bad name."""

    def __init__(self, uri=""):
        self.down, self.seconds, self.requests, self.attempts = False, 0.0, [], 0

    def log_batch(self, run_id, **values):
        self.attempts += 1
        time.sleep(self.seconds)
        if self.down:
            raise ConnectionError("no route to https://me:hunter2pw@mlflow.example")
        ((kind, found),) = values.items()
        if any(value.key.startswith("bad") for value in found):
            raise Refusal("a name")
        self.requests.append((run_id, kind, [value.key for value in found]))

    @property
    def received(self):
        return [key for _, _, keys in self.requests for key in keys]


def make(**options):
    sender = Sender("http://mlflow.example", Client(), **{"pause": 0.05, **options})
    return sender, sender.client


def named(*keys):
    return [SimpleNamespace(key=key) for key in keys]


def metrics(*keys):
    return {"metrics": named(*keys)}


def test_in_order_by_run_and_kind_and_steps_share_a_request_no_larger_than_mlflow_takes(lines):
    sender, client = make()
    client.seconds = 0.3
    started = time.perf_counter()
    for step in range(0, 1500, 10):
        sender.log_batch("r", **metrics(*map(str, range(step, step + 10))))
    sender.log_batch("r", params=named(*map(str, range(150))))
    sender.log_batch("other", tags=named("t"), synchronous=True)
    assert time.perf_counter() - started < 0.3  # no step waits for the server
    sender.finish()
    *of_steps, first, second, last = [(run_id, kind, len(keys)) for run_id, kind, keys in client.requests]
    assert [first, second, last] == [("r", "params", 100), ("r", "params", 50), ("other", "tags", 1)]
    assert client.received == [*map(str, range(1500)), *map(str, range(150)), "t"]
    assert len(of_steps) < 10
    assert max(size for _, _, size in of_steps) <= 1000
    assert lines == []


def test_what_is_lost_is_counted_and_the_newest_are_kept(lines):
    sender, client = make(limit=2, pause=0.02)
    client.down = True
    sender.log_batch("r", **metrics(*"abcde"))
    until(lambda: client.attempts > 2)
    client.down = False
    sender.finish()
    assert client.received == ["d", "e"]
    assert lines[-1] == f"3 values were not logged to {NAME}."
    client.down = True
    sender.log_batch("r", **metrics("f"))
    sender.finish()
    assert lines[-1] == f"1 values were not logged to {NAME}."


def test_only_what_is_refused_is_left_out(lines):
    sender, client = make()
    sender.log_batch("r", **metrics("a", "bad name", "b", "c"))
    sender.log_batch("r", **metrics("bad again", "d"))
    sender.finish()
    assert client.received == ["a", "b", "c", "d"]
    assert lines == [
        f"{NAME} refuses metric 'bad name', which is left out: Refusal: a name HINT: Rename or shorten it; a parameter "
        "keeps the value of the run's first start.",
        f"2 values were not logged to {NAME}.",
    ]


def test_a_forked_process_has_a_thread_of_its_own():
    sender, client = make()
    sender.log_batch("r", **metrics("a"))
    sender.finish()
    child = os.fork()
    if child == 0:
        sender.log_batch("r", **metrics("b"))
        sender.finish()
        os._exit(0 if client.received == ["a", "b"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.received == ["a"]
