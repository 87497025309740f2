import pytest

from lightning_sm._job import TrainingJob
from lightning_sm._routing._world import route_world
from lightning_sm._settings import Settings
from lightning_sm._topology import Launcher, Topology

SOURCES = {"num_nodes": "hosts", "local_world_size": "LOCAL_WORLD_SIZE"}


def topology(launcher, nodes=1, local=None):
    external = {} if local is None else {"local_world_size": local, "world_size": nodes * local, "global_rank": 0}
    return Topology(launcher, num_nodes=nodes, sources=SOURCES, **external)


def world(topology, settings=None, in_container=True, **job):
    job = TrainingJob(in_container=in_container, **job)
    routed = route_world(job, topology, settings or Settings())
    return {setting.key.partition(".")[2]: setting.value for setting in routed}


@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.VARIABLES, Launcher.MPI])
@pytest.mark.parametrize("in_container", [True, False])
def test_an_external_launchers_world(launcher, in_container):
    routed = world(topology(launcher, 2, 4), in_container=in_container, num_gpus=4 if in_container else None)
    expected = {"num_nodes": 2, "devices": 4}
    more = {"accelerator": "gpu", "strategy": "smddp"} if in_container else {}
    assert routed == {**expected, **more}


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        (1, 0, {"num_nodes": 1, "accelerator": "cpu"}),
        (1, None, {"num_nodes": 1}),
        (1, 1, {"num_nodes": 1, "devices": 1, "accelerator": "gpu"}),
        (1, 8, {"num_nodes": 1, "devices": 8, "accelerator": "gpu", "strategy": "smddp"}),
        (2, 1, {"num_nodes": 2, "devices": 1, "accelerator": "gpu", "strategy": "smddp"}),
        (2, 0, {"num_nodes": 2, "accelerator": "cpu", "strategy": "smddp"}),
    ],
)
def test_one_process_per_host(nodes, gpus, expected):
    assert world(topology(Launcher.HOST, nodes), num_gpus=gpus) == expected


def test_neuron_cores_are_no_gpus():
    assert world(topology(Launcher.HOST, 2), num_gpus=0, num_neurons=2) == {"num_nodes": 2}


def test_one_process_needs_no_strategy():
    assert "strategy" not in world(topology(Launcher.TORCHRUN, 1, 1), num_gpus=1)


def test_a_laptop_decides_itself():
    assert world(topology(Launcher.LOCAL), in_container=False) == {}


def test_what_was_given_stays_whoever_gave_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("trainer: {devices: 1, strategy: ddp}")
    settings = Settings.collect([str(path)], {"trainer": {"num_nodes": 1}}, ["--trainer.accelerator+=cpu"])
    assert world(topology(Launcher.TORCHRUN, 2, 4), settings, num_gpus=4) == {}


def test_sources():
    (nodes, devices) = route_world(TrainingJob(), topology(Launcher.TORCHRUN, 2, 4), Settings())
    assert (nodes.source, devices.source) == ("hosts", "LOCAL_WORLD_SIZE")
