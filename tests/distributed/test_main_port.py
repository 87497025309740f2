"""Rank zero says when its port is in use, in words that reach the failure reason; torch's do not."""

import socket

import pytest

from lightning_sm import Launcher, SageMakerEnvironment, Topology
from lightning_sm.errors import TopologyError
from tests.helpers.environ import setup_environment


@pytest.fixture
def taken():
    """A port that something listens on."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        yield other.getsockname()[1]


def _meeting_at(port, **more):
    return {"main_address": "127.0.0.1", "main_port": port, "sources": {"main_port": "MASTER_PORT"}, **more}


@pytest.mark.parametrize(
    "parts",
    [
        {"launcher": Launcher.HOST, "num_nodes": 2},
        {"launcher": Launcher.MPI, "world_size": 2, "global_rank": 0, "local_world_size": 2},
    ],
    ids=lambda parts: parts["launcher"],
)
def test_rank_zeros_port_in_use(taken, parts):
    environment = SageMakerEnvironment(Topology(**_meeting_at(taken), **parts))
    with pytest.raises(
        TopologyError, match=rf"Port {taken} \(by MASTER_PORT\) of the main host is already in use.*HINT"
    ):
        setup_environment(environment)


@pytest.mark.parametrize(
    "parts",
    [
        # The other ranks look for the port on rank zero's host, and so do they where Lightning has not counted yet.
        {"launcher": Launcher.HOST, "num_nodes": 2, "node_rank": 1},
        {"launcher": Launcher.HOST, "local_rank": 1},
        {"launcher": Launcher.MPI, "world_size": 2, "global_rank": 1, "local_world_size": 2, "local_rank": 1},
        # Its agent listens there.
        {"launcher": Launcher.TORCHRUN, "world_size": 1, "global_rank": 0, "local_world_size": 1},
    ],
)
def test_the_port_is_nobody_elses_matter(taken, parts):
    assert setup_environment(SageMakerEnvironment(Topology(**_meeting_at(taken), **parts))) == "127.0.0.1"


def test_a_port_that_was_free_once_may_be_our_own_now():
    with socket.socket() as first:
        first.bind(("", 0))
        port = first.getsockname()[1]
    topology = Topology(**_meeting_at(port, launcher=Launcher.HOST))
    assert setup_environment(SageMakerEnvironment(topology)) == "127.0.0.1"
    with socket.socket() as store:
        store.bind(("", port))
        store.listen()
        assert setup_environment(SageMakerEnvironment(topology)) == "127.0.0.1"


def test_who_only_reads_the_address_neither_waits_nor_joins(taken):
    topology = Topology(**{**_meeting_at(taken), "main_address": "no-such-host.invalid"}, launcher=Launcher.HOST)
    environment = SageMakerEnvironment(topology, resolve_timeout=0.1)
    assert environment.main_address == "no-such-host.invalid"
    with pytest.raises(TopologyError, match="no-such-host"):
        setup_environment(environment)
