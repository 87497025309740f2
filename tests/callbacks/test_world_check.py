"""A trainer whose world is not the job's does not train, whatever the way there."""

import pytest

from lightning_sm import Launcher, SageMakerEnvironment, Topology, trainer_settings
from lightning_sm._lightning import NAMESPACES, Namespace
from lightning_sm.errors import LightningSMError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.tiny import loader, tiny_model

pytestmark = pytest.mark.usefixtures("one_namespace")

PL = Namespace("pytorch_lightning")
_HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
_LAUNCHERS = {
    "torchrun": torchrun(1, 2, 1, 2, 0, 1, MASTER_ADDR="127.0.0.1"),
    "mpirun": mpirun(1, 2, 1, 2, **_HERE),
    "variables": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **_HERE},
    "one_per_host": _HERE,
}


def launch(container, in_environ, launcher):
    """Two processes on this host, or one on each of two hosts."""
    if launcher == "one_per_host":
        container.opt_ml.host("algo-2", "algo-1", "algo-2")
    in_environ(_LAUNCHERS[launcher])


def quiet(**arguments):
    return {"accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_progress_bar": False, **arguments}


def printed(container, capsys, *words):
    """The config that LightningCLI prints where nobody said anything about the world, as a file of the project."""
    container.leave()
    with pytest.raises(SystemExit):
        container.cli("--config", "config.yaml", *words, "--print_config")
    (container.code / "printed.yaml").write_text(capsys.readouterr().out)
    for name, value in container.variables.items():
        container.monkeypatch.setenv(name, value)
    container.hyperparameters(config="printed.yaml")


@pytest.mark.parametrize("launcher", list(_LAUNCHERS))
def test_a_printed_config_leaves_the_world_open(container, in_environ, capsys, launcher):
    printed(container, capsys)
    assert "num_nodes: 1" in (container.code / "printed.yaml").read_text()
    launch(container, in_environ, launcher)
    trainer = container.cli().trainer
    assert (trainer.world_size, trainer.global_rank) == (2, 1)
    assert type(trainer.strategy).__name__ == "SMDDPStrategy"


def test_a_config_that_a_job_of_two_hosts_saved_is_accepted_on_one(container, in_environ, capsys, lines):
    printed(container, capsys, "--trainer.num_nodes=2", "--trainer.devices=4", "--trainer.strategy=smddp")
    in_environ(_LAUNCHERS["torchrun"])
    trainer = container.cli().trainer
    assert (trainer.world_size, trainer.num_nodes) == (2, 1)
    in_environ({"RANK": "0", "LOCAL_RANK": "0"})
    container.cli()
    (table,) = (line for line in lines if "SageMaker settings" in line)
    assert "trainer.num_nodes = 1 ← GROUP_WORLD_SIZE (replaces 2 from printed.yaml)" in table
    assert "trainer.devices = 2 ← LOCAL_WORLD_SIZE (replaces 4 from printed.yaml)" in table


def test_a_config_of_two_hosts_on_a_laptop(container, capsys, monkeypatch, lines):
    printed(container, capsys, "--trainer.num_nodes=2", "--trainer.strategy=ddp", "--trainer.devices=1")
    container.leave()
    monkeypatch.setenv("LIGHTNING_SM_ONE_HOST", "")
    monkeypatch.delenv("LIGHTNING_SM_ONE_HOST")
    words = ("--config", "printed.yaml", "--trainer.accelerator=cpu", "--data.data_dir=here")
    assert container.cli(*words).trainer.world_size == 1
    assert lines == ["trainer.num_nodes is 2, but no launcher or cluster started this process: training on one host."]
    # Lightning sets the port for the processes that it starts from here.
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert container.cli(*words).trainer.world_size == 1
    monkeypatch.delenv("LIGHTNING_SM_ONE_HOST")
    assert container.cli(*words).trainer.world_size == 2


@pytest.mark.parametrize("in_container", [True, False])
def test_a_script_that_asks_for_one_device(container, in_environ, in_container):
    if not in_container:
        container.leave()
    in_environ(_LAUNCHERS["torchrun"])
    with pytest.raises(TopologyError, match="the script sets devices=1, but the job has this world"):
        trainer_settings(strategy="auto", devices=1)
    strategy = PL.module("strategies").SingleDeviceStrategy(device="cpu")
    settings = trainer_settings(**quiet(strategy=strategy), sagemaker={"export": False})
    with pytest.raises(TopologyError, match=r"in the Trainer|The Trainer's world has 1 process"):
        PL.module().Trainer(**settings).fit(tiny_model(PL.module()), loader())


@pytest.mark.parametrize("launcher", list(_LAUNCHERS))
def test_an_environment_beside_a_single_device(container, in_environ, launcher):
    launch(container, in_environ, launcher)
    trainer = PL.module().Trainer(**quiet(devices=1, plugins=[SageMakerEnvironment()], enable_checkpointing=False))
    model = tiny_model(PL.module())
    with pytest.raises(TopologyError, match="num_nodes=1 in the Trainer, but the job has this world"):
        trainer.fit(model, loader())
    assert trainer.global_step == 0
    # Lightning recommends to test on one device, also in a job of several processes.
    assert trainer.test(model, loader(), verbose=False)


def test_without_us_one_line_says_that_a_process_trains_alone(container, in_environ, lines):
    launch(container, in_environ, "torchrun")
    PL.module().Trainer(**quiet(devices=1, enable_checkpointing=False)).fit(tiny_model(PL.module()), loader())
    (line,) = (line for line in lines if "trains alone" in line)
    assert "has 1 process(es), but the job has this world: launcher='torchrun'" in line


@pytest.mark.skipif(not all(space.is_installed for space in NAMESPACES), reason="needs both of Lightning's namespaces")
def test_a_trainer_of_the_other_namespace(container, in_environ):
    settings = trainer_settings(**quiet(), sagemaker={"export": False})
    other = NAMESPACES[0].module()
    error, words = LightningSMError, r"The Trainer is lightning\.pytorch\..*made for pytorch_lightning"
    if PL.version < (2, 6):  # where Lightning itself rejects such callbacks as soon as it gets them
        error, words = ValueError, "Expected a parent"
    with pytest.raises(error, match=words):
        other.Trainer(**settings).fit(tiny_model(other), loader())


def _on_one_host(launcher):
    return Topology(launcher, world_size=2, local_world_size=2, job_hosts=("algo-1", "algo-2"))


@pytest.mark.parametrize(
    ("topology", "world", "fits"),
    [
        (Topology(Launcher.TORCHRUN, world_size=4, local_world_size=2, num_nodes=2), (4, 2), True),
        # Hosts with unequal numbers of processes.
        (Topology(Launcher.TORCHRUN, world_size=4, local_world_size=3, num_nodes=2), (4, 1), True),
        (Topology(Launcher.MPI, world_size=4, local_world_size=2, num_nodes=2), (1, 1), False),
        (Topology(Launcher.HOST, num_nodes=2), (8, 2), True),
        (Topology(Launcher.HOST, num_nodes=2), (8, 1), False),
        (Topology(Launcher.LOCAL), (3, 3), True),
        # Each host starts a torchrun of its own, or one mpirun leaves a host out, which then does not train.
        (_on_one_host(Launcher.TORCHRUN), (2, 1), False),
        (_on_one_host(Launcher.VARIABLES), (2, 1), False),
        (_on_one_host(Launcher.MPI), (2, 1), True),
    ],
)
def test_check_world(topology, world, fits):
    if fits:
        topology.check_world(*world)
    else:
        with pytest.raises(TopologyError, match=r"the job has (this world|2: launcher=.*HINT: .*--nnodes=2)"):
            topology.check_world(*world)
