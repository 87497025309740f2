from collections import UserList

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings import routing
from lightning_sm._settings.routing import route_world
from lightning_sm.errors import TopologyError
from tests.settings.given import context_of, given_of

SOURCES = {"num_nodes": "hosts", "local_world_size": "LOCAL_WORLD_SIZE"}


def topology(launcher, nodes=1, local=None):
    external = {} if local is None else {"local_world_size": local, "world_size": nodes * local, "global_rank": 0}
    return Topology(launcher, num_nodes=nodes, sources=SOURCES, **external)


def world(topology, given=None, in_container=True, **job):
    job = TrainingJob(in_container=in_container, **job)
    routed = route_world(context_of(job, given, topology=topology))
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


def test_the_projects_own_cluster_environment_is_used():
    # Our strategies bring their own, which Lightning would prefer.
    plugin = Namespace("pytorch_lightning").module("plugins.environments").LightningEnvironment()
    given = given_of(**trainer(plugins=plugin))
    assert world(topology(Launcher.HOST, 2), given, num_gpus=0) == {"num_nodes": 2, "accelerator": "cpu"}


class _Brought:
    """A strategy that has an accelerator, as those of ``neuronx_distributed.lightning`` have."""

    _accelerator = object()


@pytest.mark.parametrize(
    ("installed", "given", "expected"),
    [
        ("neuron", {}, {"accelerator": "neuron", "strategy": "smddp"}),
        ("neuron", {"accelerator": "auto", "strategy": "auto"}, {"accelerator": "neuron", "strategy": "smddp"}),
        ("neuron", {"strategy": "smddp_fsdp2"}, {"accelerator": "neuron"}),
        ("neuron", {"accelerator": "neuron"}, {"strategy": "smddp"}),
        ("neuron", {"accelerator": "cpu"}, {}),
        ("neuron", {"strategy": _Brought()}, {}),
        ("torchrun_xla", {}, {"accelerator": "torchrun_xla", "strategy": "torchrun_xla"}),
        ("torchrun_xla", {"strategy": "torchrun_xla"}, {"accelerator": "torchrun_xla"}),
        ("torchrun_xla", {"strategy": "ddp"}, {}),
        # The image has software for no NeuronCore, and Lightning decides.
        (None, {}, {}),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_neuron_cores_train_by_what_the_image_has_for_them(monkeypatch, installed, given, expected, processes):
    monkeypatch.setattr(routing, "installed_neuron_accelerator", lambda: installed)
    found = world(topology(Launcher.TORCHRUN, 1, processes), given_of(**trainer(**given)), num_gpus=0, num_neurons=2)
    assert found == {"num_nodes": 1, "devices": processes, **expected}


def test_neuron_cores_beside_no_launcher_are_counted_by_lightning(monkeypatch):
    monkeypatch.setattr(routing, "installed_neuron_accelerator", lambda: "neuron")
    found = world(topology(Launcher.HOST, 2), num_gpus=0, num_neurons=2)
    assert found == {"num_nodes": 2, "accelerator": "neuron", "strategy": "smddp"}
    found = world(topology(Launcher.HOST), given_of(trainer(devices=2)), num_gpus=0, num_neurons=2)
    assert found == {"num_nodes": 1, "accelerator": "neuron", "strategy": "smddp"}


def test_a_laptop_decides_itself():
    assert world(topology(Launcher.LOCAL), in_container=False) == {}


def trainer(**values):
    return {"trainer": values}


def test_what_was_given_stays():
    given = given_of(trainer(devices=[0, 1, 2, 3], strategy="ddp", num_nodes=2), **trainer(accelerator="gpu"))
    assert world(topology(Launcher.TORCHRUN, 2, 4), given, num_gpus=4) == {}
    given = given_of(**trainer(devices=4, num_nodes=2, strategy="ddp"))
    assert world(topology(Launcher.TORCHRUN, 2, 4), given, num_gpus=0) == {"accelerator": "cpu"}
    given = given_of(**trainer(devices=1, num_nodes=2, strategy="ddp"))
    assert world(topology(Launcher.HOST, 2), given, num_gpus=4) == {"accelerator": "gpu"}


@pytest.mark.parametrize("open_", ["auto", None])
@pytest.mark.parametrize("is_typed", [True, False])
def test_what_lightning_prints_leaves_everything_open(open_, is_typed):
    values = trainer(devices=open_, strategy=open_, num_nodes=1, accelerator=open_)
    given = given_of(**values) if is_typed else given_of(values)
    expected = {"num_nodes": 2, "devices": 4, "accelerator": "gpu", "strategy": "smddp"}
    assert world(topology(Launcher.TORCHRUN, 2, 4), given, num_gpus=4) == expected


@pytest.mark.parametrize(
    ("values", "topology", "expected"),
    [
        ({"num_nodes": 3, "devices": 8}, topology(Launcher.TORCHRUN, 2, 4), {"num_nodes": 2, "devices": 4}),
        ({"num_nodes": "3", "devices": "8"}, topology(Launcher.MPI, 2, 4), {"num_nodes": 2, "devices": 4}),
        ({"num_nodes": 2, "devices": 8}, topology(Launcher.HOST, 1), {"num_nodes": 1, "devices": 4}),
        # A part of the host's GPUs, which Lightning starts a process for each.
        ({"num_nodes": 1, "devices": 2}, topology(Launcher.HOST, 1), {}),
        ({"devices": -1}, topology(Launcher.HOST, 1), {"num_nodes": 1, "devices": 4}),
    ],
)
def test_another_jobs_world_in_a_config_file_gives_way(values, topology, expected):
    given = given_of(trainer(**values), **trainer(accelerator="gpu", strategy="ddp"))
    assert world(topology, given, num_gpus=4) == expected


@pytest.mark.parametrize(
    ("file", "explicit", "nodes", "expected"),
    [
        # A config for GPUs on a host without them: one process, as Lightning starts on CPUs.
        ({"devices": 8}, {}, 1, {"num_nodes": 1, "devices": 1, "accelerator": "cpu"}),
        ({"devices": "8"}, {}, 2, {"num_nodes": 2, "devices": 1, "accelerator": "cpu", "strategy": "smddp"}),
        ({"devices": -1, "accelerator": "auto"}, {}, 1, {"num_nodes": 1, "devices": 1, "accelerator": "cpu"}),
        ({"devices": 1}, {}, 1, {"num_nodes": 1, "accelerator": "cpu"}),
        ({"devices": "auto"}, {}, 1, {"num_nodes": 1, "accelerator": "cpu"}),
        # So many processes on CPUs are meant.
        ({"devices": 2, "accelerator": "cpu"}, {}, 1, {"num_nodes": 1, "strategy": "smddp"}),
        ({"devices": 8}, {"devices": 2}, 1, {"num_nodes": 1, "accelerator": "cpu", "strategy": "smddp"}),
    ],
)
def test_a_config_for_gpus_on_a_host_without_them(file, explicit, nodes, expected):
    given = given_of(trainer(**file), **trainer(**explicit))
    assert world(topology(Launcher.HOST, nodes), given, num_gpus=0) == expected


@pytest.mark.parametrize(("name", "value"), [("num_nodes", 3), ("devices", 1), ("devices", "8")])
def test_another_world_is_refused(name, value):
    expected = rf"a hyperparameter sets {name}={value}, but the job has this world.*HINT"
    with pytest.raises(TopologyError, match=expected):
        world(topology(Launcher.TORCHRUN, 2, 4), given_of(**trainer(**{name: value})))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # CPUs on a host with GPUs: one process, as elsewhere, not one for each GPU.
        ({"accelerator": "cpu"}, {"num_nodes": 1}),
        ({"accelerator": "cpu", "devices": 2}, {"num_nodes": 1, "strategy": "smddp"}),
        ({"accelerator": "cuda"}, {"num_nodes": 1, "devices": 4, "strategy": "smddp"}),
        ({"devices": 1}, {"num_nodes": 1, "accelerator": "gpu"}),
        ({"devices": [3]}, {"num_nodes": 1, "accelerator": "gpu"}),
        ({"devices": [2, 3]}, {"num_nodes": 1, "accelerator": "gpu", "strategy": "smddp"}),
        # No list, as Hydra's ListConfig.
        ({"devices": UserList([2, 3])}, {"num_nodes": 1, "accelerator": "gpu", "strategy": "smddp"}),
    ],
)
def test_processes_that_lightning_starts(given, expected):
    assert world(topology(Launcher.HOST, 1), given_of(**trainer(**given)), num_gpus=4) == expected
