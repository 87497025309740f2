"""What the doctor says of the main host, as the other hosts see it."""

import socket

import pytest

from lightning_sm._doctor import Status, network_checks
from tests.helpers.environ import torchrun


@pytest.fixture
def second(host):
    """The second of two hosts, whose main host is this machine."""
    host.opt_ml.host("algo-2", "algo-1", "algo-2")
    host.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", **_ranks())
    return host


def _ranks(**more):
    return {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **more}


@pytest.fixture
def listener(second):
    found = socket.create_server(("127.0.0.1", 0))
    second.keep(found)
    second.environ["MASTER_PORT"] = str(found.getsockname()[1])
    return found


def main_port(host):
    (found,) = host.findings("main port")
    return found


def test_before_the_training_a_host_that_refuses_is_there(second):
    found = main_port(second)
    assert (found.status, "nothing listens before the training" in found.text) == (Status.OK, True)


def test_a_main_host_that_drops_packets(second, monkeypatch):
    monkeypatch.setattr(network_checks, "_CONNECT_FOR", 0.0)
    monkeypatch.setattr(network_checks, "_CONNECT_TIMEOUT", 0.3)
    # Linux answers no more connections than wait to be accepted, as a firewall that drops packets answers none.
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    second.keep(full)
    for _ in range(4):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
        second.keep(waiting)
    second.environ["MASTER_PORT"] = str(full.getsockname()[1])
    found = main_port(second)
    assert (found.status, "does not answer" in found.text) == (Status.ERROR, True), found
    assert "security group" in found.hint


def test_a_main_host_without_a_name(second):
    second.environ["MASTER_ADDR"] = "missing.invalid"
    found = main_port(second)
    assert (found.status, "missing.invalid (by MASTER_ADDR) does not resolve yet" in found.text) == (
        Status.WARNING,
        True,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_its_store_listens(second, listener, rank):
    port = second.environ["MASTER_PORT"]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    second.environ.update(torchrun(rank, 2, 0, 1, rank, 2, TORCHELASTIC_USE_AGENT_STORE="True"), **address)
    found = main_port(second)
    assert (found.status, "torchrun's store listens" in found.text) == (Status.OK, True)
    listener.close()
    found = main_port(second)
    assert (found.status, "torchrun should listen there" in found.text) == (Status.WARNING, True)
