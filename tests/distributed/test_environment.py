"""The cases that Lightning's own tests have for each of its environments, and those of ours."""

import socket

import pytest

from lightning_sm import Launcher, SageMakerEnvironment, Topology
from lightning_sm._distributed import rendezvous
from lightning_sm._lightning import installed_namespaces
from lightning_sm.errors import TopologyError
from tests.helpers.environ import mpirun, setup_environment
from tests.helpers.rank_zero import rank_zero_onlys

_NAMESPACES = ["pytorch_lightning", "lightning.pytorch"]
_MISSING = socket.gaierror(-2, "Name or service not known")


def _external(**parts):
    given = {"num_nodes": 2, "node_rank": 1, "local_rank": 1, "world_size": 4, "global_rank": 3, "local_world_size": 2}
    return Topology(Launcher.TORCHRUN, **{**given, "main_address": "127.0.0.1", "main_port": 1234, **parts})


def _host(**parts):
    given = {"num_nodes": 2, "node_rank": 1, "main_address": "127.0.0.1", "main_port": 7777}
    return Topology(Launcher.HOST, **{**given, **parts})


def test_in_a_container_and_on_a_laptop(in_environ, opt_ml):
    assert not SageMakerEnvironment.detect()
    laptop = SageMakerEnvironment()
    assert (laptop.main_address, laptop.world_size(), laptop.global_rank()) == ("127.0.0.1", 1, 0)
    assert 0 < laptop.main_port == laptop.main_port < 65536
    in_environ(opt_ml.host("algo-1").environ())
    assert SageMakerEnvironment.detect()


def test_setters_count_where_lightning_starts_the_processes():
    worlds = ((_external(), (4, 3)), (_host(), (16, 9)), (Topology(Launcher.LOCAL), (16, 9)))
    for topology, world in worlds:
        environment = SageMakerEnvironment(topology)
        environment.set_world_size(16)
        environment.set_global_rank(9)
        assert (environment.world_size(), environment.global_rank()) == world


@pytest.mark.parametrize(
    ("topology", "local_rank"),
    [(_host(), 7), (Topology(Launcher.LOCAL), 7), (_external(), 1)],
    ids=["host", "laptop", "launcher"],
)
def test_local_ranks_where_lightning_starts_the_processes_and_where_it_does_not(monkeypatch, topology, local_rank):
    environment = SageMakerEnvironment(topology)
    # Lightning starts those of a host: trap 10 of the container contract.
    assert environment.creates_processes_externally == topology.is_external
    # Lightning's launcher sets it in the first process too, once it has started the others.
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert environment.creates_processes_externally
    assert environment.local_rank() == local_rank


@pytest.mark.parametrize(
    ("topology", "devices", "nodes", "hint"),
    [
        (_external(), 2, 2, None),
        *((_external(), *world, "devices=2, num_nodes=2") for world in ((1, 1), (1, 2), (2, 1), (4, 1), (1, 4))),
        # Lightning starts the processes of a host.
        (_host(), 8, 2, None),
        (_host(), 8, 1, "num_nodes=2"),
        (Topology(Launcher.LOCAL), 4, 3, None),
    ],
)
def test_settings_of_the_trainer_and_the_launchers_world(topology, devices, nodes, hint):
    environment = SageMakerEnvironment(topology)
    if hint is None:
        environment.validate_settings(devices, nodes)
        return
    said = rf"num_nodes={nodes} in the Trainer, but the job has this world.*HINT: Set Trainer\({hint}\)"
    with pytest.raises(TopologyError, match=said):
        environment.validate_settings(devices, nodes)


def test_world_of_another_size_is_refused_before_joining():
    # Lightning before 2.1 does not call validate_settings.
    environment = SageMakerEnvironment(_external())
    environment.set_world_size(1)
    with pytest.raises(TopologyError, match="devices times num_nodes is 1 in the Trainer"):
        setup_environment(environment)


@pytest.mark.parametrize(
    "variables",
    [mpirun(1, 2, 0, 1), {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}],
    ids=["mpirun", "variables"],
)
def test_several_hosts_without_a_main_host(in_environ, variables):
    in_environ(variables)
    with pytest.raises(TopologyError, match=r"main host of this world is unknown.*num_nodes=2.* HINT: Set MASTER"):
        _ = SageMakerEnvironment().main_address


def test_a_cluster_that_is_left_to_lightning(in_environ):
    # As AzureML has it. Lightning's own environment reads the same variables.
    in_environ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1"})
    ours = SageMakerEnvironment()
    lightnings = installed_namespaces()[0].module("plugins.environments").LightningEnvironment()
    assert ours.creates_processes_externally
    assert (ours.local_rank(), ours.node_rank()) == (lightnings.local_rank(), lightnings.node_rank()) == (1, 1)


def test_name_that_resolves_late(lines, monkeypatch):
    answers = iter([_MISSING, _MISSING, []])

    def getaddrinfo(*_):
        answer = next(answers)
        if answer:
            raise answer
        return answer

    monkeypatch.setattr("lightning_sm._distributed.rendezvous._POLL_SECONDS", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    environment = SageMakerEnvironment(_external(main_address="algo-1", local_rank=0, global_rank=2), resolve_timeout=5)
    # Asked once more, it waits no more: there is no other answer.
    assert [setup_environment(environment) for _ in range(2)] == ["algo-1"] * 2
    waits = [line for line in lines if "topology" not in line]
    assert waits == ["Waiting up to 5 s for the name of the main host algo-1 to resolve, for 0 s so far."]
    environment.teardown()
    rendezvous._thread.join(10)
    assert not rendezvous._thread.is_alive()


@pytest.mark.parametrize("name", ["algo-1..local", "x" * 64 + ".local"])
def test_name_that_is_none(name):
    with pytest.raises(TopologyError, match=r"did not resolve within 0 seconds: .* HINT: "):
        setup_environment(SageMakerEnvironment(_external(main_address=name), resolve_timeout=900))


@pytest.mark.parametrize(
    ("topology", "rank"),
    [
        (_external(), 3),
        (_external(global_rank=0), 0),
        (_host(), 1),
        (_host(node_rank=0), 0),
        (Topology(Launcher.LOCAL), 0),
    ],
)
def test_rank_zero_only_knows_the_rank(topology, rank):
    for namespace in installed_namespaces():
        namespace.module()
    SageMakerEnvironment(topology)
    assert {rank_zero_only.rank for rank_zero_only in rank_zero_onlys()} == {rank}
