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
def test_an_external_launchers_world_outside_a_container(launcher):
    assert world(topology(launcher, 2, 4), in_container=False) == {"num_nodes": 2, "devices": 4}


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
@pytest.mark.parametrize(
    ("topology", "counted"),
    [
        (topology(Launcher.TORCHRUN, 1, 1), {"num_nodes": 1, "devices": 1}),
        (topology(Launcher.TORCHRUN, 1, 2), {"num_nodes": 1, "devices": 2}),
        (topology(Launcher.HOST, 2), {"num_nodes": 2}),  # Lightning counts them
    ],
)
def test_neuron_cores_train_by_what_the_image_has_for_them(monkeypatch, installed, given, expected, topology, counted):
    monkeypatch.setattr(routing, "installed_neuron_accelerator", lambda: installed)
    assert world(topology, given_of(**trainer(**given)), num_gpus=0, num_neurons=2) == {**counted, **expected}


def test_a_laptop_decides_itself():
    assert world(topology(Launcher.LOCAL), in_container=False) == {}


def trainer(**values):
    return {"trainer": values}


@pytest.mark.parametrize(("name", "value"), [("num_nodes", 3), ("devices", 1), ("devices", "8")])
def test_another_world_is_refused(name, value):
    expected = rf"a hyperparameter sets {name}={value}, but the job has this world.*HINT"
    with pytest.raises(TopologyError, match=expected):
        world(topology(Launcher.TORCHRUN, 2, 4), given_of(**trainer(**{name: value})))


OPEN = [{"num_nodes": 1, **dict.fromkeys(("devices", "strategy", "accelerator"), value)} for value in ("auto", None)]
GPU_DDP = {"accelerator": "gpu", "strategy": "ddp"}
ONE, TWO, LAUNCHED = topology(Launcher.HOST, 1), topology(Launcher.HOST, 2), topology(Launcher.TORCHRUN, 2, 4)


@pytest.mark.parametrize(
    ("topology", "gpus", "file", "explicit", "expected"),
    [
        # One process per host.
        (ONE, 0, {}, {}, {"num_nodes": 1, "accelerator": "cpu"}),
        (ONE, None, {}, {}, {"num_nodes": 1}),
        (ONE, 1, {}, {}, {"num_nodes": 1, "devices": 1, "accelerator": "gpu"}),
        (ONE, 8, {}, {}, {"num_nodes": 1, "devices": 8, "accelerator": "gpu", "strategy": "smddp"}),
        (TWO, 1, {}, {}, {"num_nodes": 2, "devices": 1, "accelerator": "gpu", "strategy": "smddp"}),
        (TWO, 0, {}, {}, {"num_nodes": 2, "accelerator": "cpu", "strategy": "smddp"}),
        # A launcher started all processes.
        *(
            (
                topology(launcher, 2, 4),
                4,
                {},
                {},
                {"num_nodes": 2, "devices": 4, "accelerator": "gpu", "strategy": "smddp"},
            )
            for launcher in (Launcher.TORCHRUN, Launcher.VARIABLES, Launcher.MPI)
        ),
        # What was given stays.
        (LAUNCHED, 4, {"devices": [0, 1, 2, 3], "strategy": "ddp", "num_nodes": 2}, {"accelerator": "gpu"}, {}),
        (LAUNCHED, 0, {}, {"devices": 4, "num_nodes": 2, "strategy": "ddp"}, {"accelerator": "cpu"}),
        (TWO, 4, {}, {"devices": 1, "num_nodes": 2, "strategy": "ddp"}, {"accelerator": "gpu"}),
        # What Lightning prints leaves everything open.
        *(
            (LAUNCHED, 4, *given, {"num_nodes": 2, "devices": 4, "accelerator": "gpu", "strategy": "smddp"})
            for given in (*((values, {}) for values in OPEN), *(({}, values) for values in OPEN))
        ),
        # Another job's world in a config file gives way.
        (LAUNCHED, 4, {"num_nodes": 3, "devices": 8}, GPU_DDP, {"num_nodes": 2, "devices": 4}),
        (topology(Launcher.MPI, 2, 4), 4, {"num_nodes": "3", "devices": "8"}, GPU_DDP, {"num_nodes": 2, "devices": 4}),
        (ONE, 4, {"num_nodes": 2, "devices": 8}, GPU_DDP, {"num_nodes": 1, "devices": 4}),
        (ONE, 4, {"devices": -1}, GPU_DDP, {"num_nodes": 1, "devices": 4}),
        # A part of the host's GPUs, which Lightning starts a process for each.
        (ONE, 4, {"num_nodes": 1, "devices": 2}, GPU_DDP, {}),
        # A config for GPUs on a host without them: one process, as Lightning starts on CPUs.
        (ONE, 0, {"devices": 8}, {}, {"num_nodes": 1, "devices": 1, "accelerator": "cpu"}),
        (TWO, 0, {"devices": "8"}, {}, {"num_nodes": 2, "devices": 1, "accelerator": "cpu", "strategy": "smddp"}),
        (ONE, 0, {"devices": -1, "accelerator": "auto"}, {}, {"num_nodes": 1, "devices": 1, "accelerator": "cpu"}),
        (ONE, 0, {"devices": 1}, {}, {"num_nodes": 1, "accelerator": "cpu"}),
        (ONE, 0, {"devices": "auto"}, {}, {"num_nodes": 1, "accelerator": "cpu"}),
        # So many processes on CPUs are meant.
        (ONE, 0, {"devices": 2, "accelerator": "cpu"}, {}, {"num_nodes": 1, "strategy": "smddp"}),
        (ONE, 0, {"devices": 8}, {"devices": 2}, {"num_nodes": 1, "accelerator": "cpu", "strategy": "smddp"}),
        # CPUs on a host with GPUs: one process, as elsewhere, not one for each GPU.
        (ONE, 4, {}, {"accelerator": "cpu"}, {"num_nodes": 1}),
        (ONE, 4, {}, {"accelerator": "cpu", "devices": 2}, {"num_nodes": 1, "strategy": "smddp"}),
        (ONE, 4, {}, {"accelerator": "cuda"}, {"num_nodes": 1, "devices": 4, "strategy": "smddp"}),
        (ONE, 4, {}, {"devices": 1}, {"num_nodes": 1, "accelerator": "gpu"}),
        (ONE, 4, {}, {"devices": [3]}, {"num_nodes": 1, "accelerator": "gpu"}),
        (ONE, 4, {}, {"devices": [2, 3]}, {"num_nodes": 1, "accelerator": "gpu", "strategy": "smddp"}),
        # No list, as Hydra's ListConfig.
        (ONE, 4, {}, {"devices": UserList([2, 3])}, {"num_nodes": 1, "accelerator": "gpu", "strategy": "smddp"}),
    ],
)
def test_the_world_of_a_job(topology, gpus, file, explicit, expected):
    assert world(topology, given_of(trainer(**file), **trainer(**explicit)), num_gpus=gpus) == expected
