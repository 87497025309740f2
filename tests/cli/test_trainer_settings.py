import os

import pytest

from lightning_sm import SageMakerEnvironment, trainer_settings
from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import NAMESPACES, Namespace
from lightning_sm._lightning.legacy import strategy_of
from tests.helpers.environ import torchrun
from tests.projects.container import log_lines

pytestmark = pytest.mark.usefixtures("one_namespace")

PL = Namespace("pytorch_lightning")
# Lightning takes the second summary where rich is installed, unless the progress bar is off.
_BY_CHANCE = {"SaveConfigCallback", "ModelSummary", "RichModelSummary"}


def quiet(**arguments):
    return {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, **arguments}


def test_a_script_gets_what_the_cli_gives(container):
    script = PL.module().Trainer(**trainer_settings(max_epochs=1, enable_progress_bar=False))
    command = container.cli().trainer
    for name in ("world_size", "num_nodes", "max_epochs", "log_dir", "default_root_dir"):
        assert getattr(script, name) == getattr(command, name), name
    for one, other in ((script, command), (command, script)):
        kinds = {type(callback).__name__ for callback in other.callbacks} - _BY_CHANCE
        assert kinds <= {type(callback).__name__ for callback in one.callbacks}
    assert script.checkpoint_callback.dirpath == command.checkpoint_callback.dirpath
    assert script.logger.save_dir == command.logger.save_dir
    assert type(strategy_of(script)) is type(strategy_of(command))


def test_what_is_given_wins(container):
    loggers = PL.module("loggers")
    logger = loggers.CSVLogger("mine")
    given = {"num_nodes": 1, "accelerator": "cpu", "devices": 1, "strategy": "auto", "default_root_dir": "here"}
    settings = trainer_settings(logger=logger, **given)
    assert {name: settings[name] for name in given} == given
    assert settings["logger"] is logger
    assert trainer_settings(logger=False)["logger"] is False
    assert trainer_settings(logger=[logger])["logger"] == [logger]


def test_checkpoints_of_the_script_go_to_the_jobs_directory(container):
    checkpoint_class = PL.module("callbacks").ModelCheckpoint
    callbacks = [checkpoint_class(dirpath=path) for path in (None, "ckpts", "memory://x/y")]
    settings = trainer_settings(callbacks=callbacks)
    directory = str(container.base / "output" / "data" / "checkpoints")
    # That of the first is chosen with its fit.
    assert [callback.dirpath for callback in callbacks] == [None, f"{directory}/ckpts", "memory://x/y"]
    assert os.path.isdir(f"{directory}/ckpts")
    assert settings["callbacks"][:3] == callbacks
    added = [type(callback).__name__ for callback in settings["callbacks"][3:]]
    assert (added.count("AutoResume"), added.count("ModelCheckpoint"), added.count("ModelExport")) == (1, 0, 1)


@pytest.mark.parametrize(
    "arguments", [{"monitor": "val_loss"}, {"monitor": "val_loss", "save_last": True}, {}], ids=str
)
def test_checkpoints_of_the_model_go_to_the_jobs_directory_and_the_jobs_own_stay(container, arguments):
    from tiny_data import TinyData
    from tiny_model import TinyModel

    class Model(TinyModel):
        def configure_callbacks(self):
            callbacks = PL.module("callbacks")
            return [callbacks.EarlyStopping("val_loss"), callbacks.ModelCheckpoint("ckpts", "{epoch}", **arguments)]

    trainer = PL.module().Trainer(**trainer_settings(**quiet(max_epochs=2, num_sanity_val_steps=0)))
    for _ in range(2):  # in each fit Lightning asks the model again
        trainer.fit(Model(), TinyData("x"))
    directory = container.base / "output" / "data" / "checkpoints"
    assert [callback.dirpath for callback in trainer.checkpoint_callbacks] == [str(directory / "ckpts")]
    assert list(directory.glob("*/fit-0/step-*.json"))
    assert list(directory.glob("ckpts/epoch=*.ckpt"))
    assert list(directory.rglob("last.ckpt")) or "save_last" not in arguments
    # The program finds all of them where it has told the callback to save.
    found = {path.name: path.resolve() for path in (container.code / "ckpts").iterdir()}
    assert found == {path.name: path.resolve() for path in (directory / "ckpts").iterdir()}


def test_outside_a_container_nothing_changes(container):
    container.leave()
    callback = PL.module("callbacks").ModelCheckpoint(dirpath="ckpts")
    given = quiet(callbacks=[callback], logger=True)
    assert trainer_settings(**given) == given
    assert os.path.realpath(callback.dirpath) == os.path.realpath("ckpts")
    assert trainer_settings() == {}


@pytest.mark.parametrize("in_container", [True, False])
def test_torchrun(container, in_environ, in_container):
    if not in_container:
        container.leave()
    in_environ(torchrun(3, 4, 1, 2, 1, 2))
    settings = trainer_settings(accelerator="cpu")
    assert (settings["devices"], settings["num_nodes"]) == (2, 2)
    assert settings.get("strategy") == ("smddp" if in_container else None)
    assert "plugins" not in settings
    trainer = PL.module().Trainer(**settings)
    assert (trainer.world_size, trainer.global_rank) == (4, 3)


def test_a_strategy_of_the_scripts_own_gets_the_environment(container, in_environ):
    in_environ(torchrun(1, 2, 1, 2, 0, 1))
    settings = trainer_settings(strategy="ddp")
    (plugin,) = settings["plugins"]
    assert isinstance(plugin, SageMakerEnvironment)
    ours = strategy_class(PL, "SMDDPStrategy")
    assert isinstance(trainer_settings(strategy=ours.__bases__[1]())["plugins"][0], SageMakerEnvironment)
    assert "plugins" not in trainer_settings(strategy=ours())
    assert trainer_settings(strategy="ddp", plugins=[plugin])["plugins"] == [plugin]


@pytest.mark.skipif(not all(space.is_installed for space in NAMESPACES), reason="needs both of Lightning's namespaces")
def test_the_namespace_is_that_of_what_is_given(container):
    for namespace in NAMESPACES:
        given = {"trainer_class": namespace.module().Trainer}, {"callbacks": namespace.module("callbacks").Timer()}
        for arguments in given:
            settings = trainer_settings(**arguments, sagemaker={"max_runtime": "1h"})
            assert "trainer_class" not in settings
            assert all(namespace.owns(type(callback)) for callback in settings["callbacks"])


@pytest.mark.parametrize("name", ["MLFlowLogger", "WandbLogger"])
def test_a_logger_of_the_projects_own_may_have_the_name_of_lightnings(container, monkeypatch, name):
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    own = dict.fromkeys(("name", "version", "experiment", "log_metrics", "log_hyperparams"), "own")
    logger = type(name, (PL.module("loggers").CSVLogger.__mro__[1],), {**own, "__module__": "my.loggers"})()
    assert trainer_settings(logger=logger)["logger"] in (logger, [logger])


@pytest.mark.parametrize(("name", "offline", "is_named"), [
    ("CSVLogger", False, True), ("WandbLogger", False, False), ("WandbLogger", True, True),
])  # fmt: skip
def test_a_logger_that_has_begun_to_write_and_does_not_send_is_named(container, name, offline, is_named):
    kept = PL.module("loggers").CSVLogger
    logger = type(name, (kept,), {"_offline": offline, "__module__": kept.__module__})("logs")
    assert logger.experiment
    with log_lines() as lines:
        trainer_settings(logger=logger)
    said = f"{name} writes to logs, which SageMaker does not keep. HINT: Give it a directory below "
    assert [line.startswith(said) for line in lines if "does not keep" in line] == [True] * is_named
    assert logger.save_dir == "logs"
