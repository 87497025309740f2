import os
import types
from inspect import signature

import fsspec
import pytest
import torch

import lightning_sm
from lightning_sm import SageMakerEnvironment, _export, trainer_settings
from lightning_sm._distributed.smddp import smddp_strategy_class
from lightning_sm._lightning import NAMESPACES, Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import JobConfigError, OutputError, TopologyError
from tests.helpers.environ import torchrun
from tests.projects.container import log_lines

pytestmark = pytest.mark.usefixtures("one_namespace")

PL = Namespace("pytorch_lightning")
# Lightning takes the second summary where rich is installed, unless the progress bar is off.
_BY_CHANCE = {"SaveConfigCallback", "ModelSummary", "RichModelSummary"}


def names(callbacks):
    return [type(callback).__name__ for callback in callbacks]


def quiet(**arguments):
    return {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, **arguments}


def loaded(path):
    return _export.load_file(str(path), weights_only=False)


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


def test_a_script_trains(container):
    trainer = PL.module().Trainer(**trainer_settings(**quiet()))
    from tiny_data import TinyData
    from tiny_model import TinyModel

    trainer.fit(TinyModel(), TinyData("x"))
    assert container.summary["class_path"] == "tiny_model.TinyModel"
    assert list((container.base / "output" / "data").rglob("*.ckpt"))


def test_what_is_given_wins(container):
    loggers = PL.module("loggers")
    logger = loggers.CSVLogger("mine")
    given = {"num_nodes": 1, "accelerator": "cpu", "devices": 1, "strategy": "auto", "default_root_dir": "here"}
    settings = trainer_settings(logger=logger, **given)
    assert {name: settings[name] for name in given} == given
    assert settings["logger"] is logger
    assert trainer_settings(logger=False)["logger"] is False
    assert trainer_settings(logger=[logger])["logger"] == [logger]


def test_nothing_is_left_to_decide(container):
    settings = trainer_settings(
        logger=False, num_nodes=1, accelerator="cpu", default_root_dir="x", enable_checkpointing=False,
        sagemaker={"export": False},
    )  # fmt: skip
    assert not {"ModelCheckpoint", "ModelExport"} & set(names(settings["callbacks"]))
    assert [type(plugin).__name__ for plugin in settings["plugins"]] == ["SageMakerEnvironment"]


@pytest.mark.parametrize("value", [None, True])
def test_the_default_logger(container, value):
    given = {} if value is None else {"logger": value}
    assert trainer_settings(**given)["logger"].save_dir == str(container.base / "output" / "data")


def test_checkpoints_of_the_script_go_to_the_jobs_directory(container):
    checkpoint_class = PL.module("callbacks").ModelCheckpoint
    callbacks = [checkpoint_class(dirpath=path) for path in (None, "ckpts", "memory://x/y")]
    settings = trainer_settings(callbacks=callbacks)
    directory = str(container.base / "output" / "data" / "checkpoints")
    assert [callback.dirpath for callback in callbacks] == [directory, f"{directory}/ckpts", "memory://x/y"]
    assert os.path.isdir(f"{directory}/ckpts")
    assert settings["callbacks"][:3] == callbacks
    added = names(settings["callbacks"][3:])
    assert (added.count("AutoResume"), added.count("ModelCheckpoint"), added.count("ModelExport")) == (1, 0, 1)


def test_callbacks_of_one_file_name_keep_files_of_their_own_and_the_first_best_is_exported(container):
    from tiny_data import TinyData
    from tiny_model import TinyModel

    checkpoint_class = PL.module("callbacks").ModelCheckpoint
    unnumbered = {"enable_version_counter"} & signature(checkpoint_class).parameters.keys()
    same = {"filename": "best", "monitor": "val_loss", **dict.fromkeys(unnumbered, False)}
    directory = container.base / "output" / "data" / "checkpoints" / "runs"
    for fold in ("fold0", "fold1"):  # with trainers of their own, of which none knows the others' callbacks
        callbacks = [
            checkpoint_class(f"runs/{fold}/first", mode="max", **same),
            checkpoint_class(f"runs/{fold}/second", mode="min", **same),
        ]
        arguments = quiet(max_epochs=3, sagemaker={"resume": "never"}, num_sanity_val_steps=0, callbacks=callbacks)
        PL.module().Trainer(**trainer_settings(**arguments)).fit(TinyModel(), TinyData("x"))
        first, second = (loaded(directory / fold / name / "best.ckpt") for name in ("first", "second"))
        assert first["epoch"] < second["epoch"]  # the loss falls
        assert container.summary["checkpoint"] == str(directory / fold / "first" / "best.ckpt")
        exported = loaded(container.model / "model.pt")
        assert all(torch.equal(exported[name], value) for name, value in first["state_dict"].items())
    assert sorted(str(path.relative_to(directory)) for path in directory.rglob("*.ckpt")) == [
        f"{fold}/{name}/best.ckpt" for fold in ("fold0", "fold1") for name in ("first", "second")
    ]


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
    assert not (container.code / "ckpts").exists()


def test_one_callback_need_not_be_a_list(container):
    export = callback_class(PL, "ModelExport")()
    settings = trainer_settings(callbacks=export)
    assert settings["callbacks"][0] is export
    assert names(settings["callbacks"]).count("ModelExport") == 1
    assert names(settings["callbacks"]).count("AutoResume") == 1


def test_the_group(container, tmp_path):
    group = {"output_dir": str(tmp_path / "o"), "checkpoint_dir": str(tmp_path / "c"), "model_dir": str(tmp_path / "m")}
    settings = trainer_settings(sagemaker=group)
    (resume,) = (found for found in settings["callbacks"] if isinstance(found, callback_class(PL, "AutoResume")))
    (export,) = (found for found in settings["callbacks"] if isinstance(found, callback_class(PL, "ModelExport")))
    assert (settings["logger"].save_dir, resume.directory) == (group["output_dir"], group["checkpoint_dir"])  # type: ignore[attr-defined]
    assert export.model_dir == group["model_dir"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="chanels"):
        trainer_settings(sagemaker={"chanels": {}})


def test_outside_a_container_nothing_changes(container):
    container.leave()
    callback = PL.module("callbacks").ModelCheckpoint(dirpath="ckpts")
    given = quiet(callbacks=[callback], logger=True)
    assert trainer_settings(**given) == given
    assert os.path.realpath(callback.dirpath) == os.path.realpath("ckpts")
    assert trainer_settings() == {}


def test_outside_a_container_a_model_goes_where_somebody_says(container, tmp_path):
    container.leave()
    (export,) = trainer_settings(sagemaker={"model_dir": str(tmp_path)})["callbacks"]
    assert export.model_dir == str(tmp_path)


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
    assert "plugins" not in trainer_settings(strategy=smddp_strategy_class(PL)())
    assert trainer_settings(strategy="ddp", plugins=[plugin])["plugins"] == [plugin]


@pytest.mark.parametrize("namespace", [space for space in NAMESPACES if space.is_installed], ids=str)
def test_either_namespace(container, monkeypatch, namespace):
    monkeypatch.setattr("lightning_sm._trainer_defaults.choose_namespace", lambda: namespace)
    settings = trainer_settings(**quiet())
    assert namespace.owns(type(settings["logger"]))
    assert all(namespace.owns(type(callback)) for callback in settings["callbacks"])
    assert namespace.module().Trainer(**settings).log_dir.startswith(str(container.base))


def test_none_leaves_a_setting_open(container, in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1, 2))
    settings = trainer_settings(devices=None, num_nodes=1, strategy=None)
    assert (settings["devices"], settings["num_nodes"], settings["strategy"]) == (2, 2, "smddp")


def test_another_number_of_hosts_is_a_reason(container, in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1, 2))
    with pytest.raises(TopologyError, match="the command line sets num_nodes=3, but the job has this world"):
        trainer_settings(num_nodes=3)
    assert container.failure.startswith("TopologyError: ")


@pytest.mark.skipif(not all(space.is_installed for space in NAMESPACES), reason="needs both of Lightning's namespaces")
def test_the_namespace_is_that_of_what_is_given(container):
    for namespace in NAMESPACES:
        given = {"trainer_class": namespace.module().Trainer}, {"callbacks": namespace.module("callbacks").Timer()}
        for arguments in given:
            settings = trainer_settings(**arguments, sagemaker={"max_runtime": "1h"})
            assert "trainer_class" not in settings
            assert all(namespace.owns(type(callback)) for callback in settings["callbacks"])


def test_the_table_is_printed_once(container):
    with log_lines() as lines:
        trainer_settings()
    (table,) = lines
    assert table.startswith("SageMaker settings:")
    assert "trainer.default_root_dir = " in table
    assert "checkpoints in " in table
    assert "channel" not in table
    container.leave()
    with log_lines() as lines:
        trainer_settings()
    assert lines == []


def test_errors_are_reasons(container):
    (container.code / "file").write_text("")
    with pytest.raises(OutputError):
        trainer_settings(sagemaker={"checkpoint_dir": str(container.code / "file" / "below")})
    assert container.failure.startswith("OutputError: The checkpoint directory")
    os.unlink(container.base / "output" / "failure")
    container.opt_ml.write("resourceconfig.json", "{")
    with pytest.raises(JobConfigError):
        trainer_settings()
    assert container.failure.startswith("JobConfigError: ")


def test_it_is_public():
    assert isinstance(lightning_sm.trainer_settings, types.FunctionType)


@pytest.mark.parametrize("kind", ["CSVLogger", "TensorBoardLogger"])
def test_loggers_of_the_script_write_to_the_output_directory(container, kind):
    logger_class = getattr(PL.module("loggers"), kind)
    loggers = [logger_class("logs", name="mine"), logger_class(str(container.base / "output" / "data" / "own"))]
    with log_lines() as lines:
        settings = trainer_settings(**quiet(logger=loggers))
    output = str(container.base / "output" / "data")
    assert settings["logger"] == loggers
    assert [logger.save_dir for logger in loggers] == [output, os.path.join(output, "own")]
    assert any(
        f"trainer.logger[0].save_dir = {output} ←" in line and "(replaces logs from the script)" in line
        for line in lines
    )
    loggers[0].log_metrics({"loss": 1.0}, step=0)
    loggers[0].save()
    assert os.listdir(os.path.join(output, "mine", "version_0"))
    assert not os.path.exists("logs")


def test_a_tensorboard_logger_of_the_script_with_a_remote_directory_is_uploaded(container, monkeypatch):
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    logger = PL.module("loggers").TensorBoardLogger("memory://script/runs", name="net")
    with log_lines() as lines:
        settings = trainer_settings(**quiet(logger=[logger], sagemaker={"upload_every": "1m"}))
    folder = str(container.base / "output" / "data" / "tensorboard" / "script" / "runs")
    assert (logger.save_dir, logger.version) == (folder, "job-1")
    assert any(
        f"trainer.logger[0].save_dir = {folder} ← uploaded to memory://script/runs (replaces " in line for line in lines
    )
    (upload,) = (each for each in settings["callbacks"] if type(each).__name__ == "TensorBoardUpload")
    assert (upload.targets, upload.interval) == ({folder: "memory://script/runs"}, "1m")
    from tiny_data import TinyData
    from tiny_model import TinyModel

    PL.module().Trainer(**settings).fit(TinyModel(), TinyData("."))
    found = fsspec.filesystem("memory").find("/script/runs/net/job-1")
    assert any("tfevents" in name for name in found)


def test_a_logger_that_has_begun_to_write_is_named(container):
    logger = PL.module("loggers").CSVLogger("logs")
    assert logger.experiment
    with log_lines() as lines:
        trainer_settings(logger=logger)
    assert logger.save_dir == "logs"
    (line,) = (line for line in lines if "does not keep" in line)
    assert line.startswith("CSVLogger writes to logs, which SageMaker does not keep. HINT: Give it a directory below ")


def test_a_logger_that_nobody_knows_is_named(container):
    class Mine(PL.module("loggers").CSVLogger):
        @property
        def save_dir(self):
            return "mine"

    with log_lines() as lines:
        trainer_settings(logger=[Mine("mine")])
    assert any(line.startswith("Mine writes to mine, which SageMaker does not keep.") for line in lines)


@pytest.mark.parametrize(("offline", "warned"), [(False, False), (True, True)])
def test_a_logger_that_sends_is_left_alone(container, offline, warned):
    class WandbLogger(PL.module("loggers").CSVLogger):
        save_dir = "wandb"
        _offline = offline

    with log_lines() as lines:
        trainer_settings(logger=WandbLogger("wandb"))
    assert any("does not keep" in line for line in lines) is warned


def test_loggers_outside_a_container_stay(container):
    container.leave()
    logger = PL.module("loggers").CSVLogger("logs")
    trainer_settings(logger=logger)
    assert logger.save_dir == "logs"
