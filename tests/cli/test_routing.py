"""What a job's directories and channels become in the objects that train."""

import os

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import OutputError
from tests.helpers.environ import torchrun
from tests.projects.container import config_of

PL = Namespace("pytorch_lightning")


def output(container):
    return str(container.base / "output" / "data")


def checkpoints(cli):
    """Where the project's own checkpoints go."""
    return [saver.dirpath for saver in cli.trainer.checkpoint_callbacks]


def resuming(cli):
    """Where the saves go from which an interrupted job goes on."""
    auto_resume = callback_class(PL, "AutoResume")
    found = [each for each in cli.trainer.callbacks if isinstance(each, auto_resume)]
    return [each.directory for each in found]  # type: ignore[attr-defined]


SAVE = "{class_path: ModelCheckpoint, init_args: {monitor: val_loss, dirpath: ckpts}}"


@pytest.mark.parametrize(
    ("callbacks", "below"),
    [(SAVE, "ckpts"), (f"[{SAVE}]", "ckpts"), (f"[LearningRateMonitor, {SAVE.replace('ckpts', '.')}]", "")],
)
def test_checkpoints_of_a_config_go_there(container, callbacks, below):
    (container.base / "checkpoints").mkdir()
    container.config(f"trainer: {{callbacks: {callbacks}}}", "save.yaml")
    cli = container.hyperparameters(config=["config.yaml", "save.yaml"]).cli()
    directory = str(container.base / "checkpoints" / below)
    assert checkpoints(cli) == [directory]
    assert os.path.isdir(directory)
    config = config_of(cli)["trainer"]["callbacks"]
    last = config[-1] if isinstance(config, list) else config
    assert last["init_args"]["dirpath"] == directory


MINE = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "mine"}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"trainer.callbacks": MINE}, []),
        ({"trainer.callbacks": [MINE]}, []),
        ({}, ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=mine"]),
    ],
)
def test_checkpoints_that_were_set_for_this_run_stay(container, values, words):
    cli = container.hyperparameters(values).cli(*words)
    assert resuming(cli) == [os.path.join(output(container), "checkpoints")]
    assert [os.path.realpath(path) for path in checkpoints(cli)] == [os.path.realpath("mine")]


@pytest.mark.parametrize("what", ["checkpoint_dir", "model_dir"])
def test_a_directory_that_cannot_be_written_fails_before_training(container, what):
    (container.code / "file").write_text("")
    container.hyperparameters({f"sagemaker.{what}": str(container.code / "file" / "below")})
    with pytest.raises(OutputError, match=r"cannot be written .* HINT: "):
        container.cli(run=True)
    assert "OutputError: The " in container.failure
    assert not list(container.base.rglob("*.ckpt"))


def test_the_groups_own_directories(container, tmp_path):
    values = {f"sagemaker.{name}": str(tmp_path / name) for name in ("output_dir", "checkpoint_dir", "model_dir")}
    cli = container.hyperparameters(values).cli()
    assert cli.trainer.logger.save_dir == str(tmp_path / "output_dir")
    assert resuming(cli) == [str(tmp_path / "checkpoint_dir")]
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert (tmp_path / "model_dir" / "model.pt").exists()
    assert not container.model.exists()


def test_durations_in_a_config_may_be_numbers(container):
    container.config("sagemaker: {save_every: 90, max_runtime: 3600, log_every: 1.5, upload_every: 60}\n")
    by_name = {type(callback).__name__: callback for callback in container.cli().trainer.callbacks}
    assert by_name["AutoResume"].save_every == 90
    assert by_name["GracefulStop"]._deadline.seconds == 3600


def test_the_table_is_printed_once_with_sources(container, lines):
    container.channels("training", "labels").cli("--trainer.max_epochs=1")
    (table,) = [line for line in lines if line.startswith("SageMaker settings:")]
    assert f"trainer.logger.save_dir = {output(container)} ← SAGEMAKER_BASE_DIR" in table
    assert f"data.init_args.data_dir = {container.channel('training')} ← channel 'training'" in table
    assert "trainer.accelerator = cpu ← SM_NUM_GPUS" in table
    assert "channel 'labels'" in table


@pytest.mark.parametrize(("rank", "tables"), [(0, 1), (1, 0)])
def test_the_table_is_rank_zeros(container, lines, in_environ, rank, tables):
    in_environ(torchrun(rank, 2, rank, 2, 0, 1))
    cli = container.cli()
    assert (cli.trainer.world_size, cli.trainer.global_rank) == (2, rank)
    assert type(strategy_of(cli.trainer)).__name__ == "SMDDPStrategy"
    assert len([line for line in lines if "SageMaker settings" in line]) == tables


@pytest.mark.parametrize("plugins", ["LightningEnvironment", "[{class_path: LightningEnvironment}]"])
def test_the_configs_own_cluster_environment_is_used(container, plugins):
    container.opt_ml.host("algo-2", "algo-1", "algo-2")
    container.config(f"trainer: {{plugins: {plugins}}}", "own.yaml")
    trainer = container.hyperparameters(config=["config.yaml", "own.yaml"]).cli().trainer
    assert (trainer.num_nodes, type(strategy_of(trainer).cluster_environment).__name__) == (2, "LightningEnvironment")
