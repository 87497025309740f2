import os
import sys
from dataclasses import asdict

import pytest

from lightning_sm import SageMakerOptions
from lightning_sm._lightning import NAMESPACES, Namespace
from lightning_sm._lightning.legacy import cli_base_path
from lightning_sm.cli import main, sagemaker_cli_class
from lightning_sm.errors import LightningSMError
from tests.projects.container import config_of

LIGHTNING = NAMESPACES[0]
OTHER = """
trainer: {max_epochs: 1, enable_progress_bar: false, enable_model_summary: false, logger: false}
model: {class_path: tiny_lightning.OtherModel}
data: {class_path: tiny_lightning.OtherData}
"""


@pytest.fixture
def calls(monkeypatch):
    """The trainer's methods that were called, instead of calling them."""
    called = []
    trainer_class = Namespace("pytorch_lightning").module().Trainer
    for name in ("fit", "validate", "test", "predict"):

        def method(self, *_, _name=name, **__):
            called.append(_name)

        method.__name__ = name  # by which jsonargparse 4.21 looks for it in the class
        monkeypatch.setattr(trainer_class, name, method)
    return called


def test_the_module_is_a_command(container):
    words = ["--config", "config.yaml", "--data.data_dir=x", "--trainer.default_root_dir=out"]
    ran = container.leave().run("-m", "lightning_sm.cli", "fit", *words)
    assert ran.returncode == 0, ran.stderr
    assert "SageMaker settings" not in ran.stderr
    assert not container.model.exists()


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_the_other_subcommands_run(container, subcommand):
    main([subcommand])
    assert not container.model.exists()


@pytest.mark.slow
def test_two_lines_are_a_complete_entry_point(container):
    ran = container.run("train.py", "--config", "config.yaml")
    assert ran.returncode == 0, ran.stderr
    assert sorted(os.listdir(container.model)) == ["config.resolved.yaml", "config.yaml", "model.json", "model.pt"]
    assert ran.stderr.count("SageMaker settings:") == 1
    assert container.failure is None
    again = container.run("train.py", "--config", "config.yaml")
    assert again.returncode == 0, again.stderr


def test_a_job_fails_with_a_reason(container):
    container.hyperparameters({"trainer.max_epoch": 2})
    ran = container.run("train.py", "--config", "config.yaml", "--trainer.max_epoch", "2")
    assert ran.returncode == 1
    assert "did you mean 'trainer.max_epochs'?" in container.failure


@pytest.mark.parametrize("name", ["hyperparameters.json", "resourceconfig.json", "inputdataconfig.json"])
def test_broken_files_of_the_job_are_a_reason(container, name):
    container.opt_ml.write(name, "{broken")
    with pytest.raises(LightningSMError):
        main([])
    assert f"{name} is not JSON" in container.failure
    os.unlink(container.base / "output" / "failure")
    with pytest.raises(LightningSMError):
        container.cli()
    assert container.failure.startswith("JobConfigError: ")


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_the_hyperparameter_subcommand(container, calls, subcommand):
    container.hyperparameters(subcommand=subcommand)
    main(["--config", "config.yaml", "--subcommand", subcommand])
    assert calls == [subcommand]


def test_a_typed_subcommand_wins(container, calls):
    container.hyperparameters(subcommand="test")
    main(["validate"])
    assert calls == ["validate"]


def test_no_subcommand_outside_a_container_is_lightnings_own_error(container, capsys):
    container.leave()
    with pytest.raises(SystemExit):
        main(["--config", "config.yaml"])
    assert "usage" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not LIGHTNING.is_installed, reason="needs the namespace lightning.pytorch")
def test_the_model_decides_on_the_namespace(container):
    container.config(OTHER, "other.yaml").hyperparameters(config="other.yaml")
    made = container.run("-c", "import sys; from lightning_sm.cli import main; main(); print(sorted(sys.modules))")
    assert made.returncode == 0, made.stderr
    assert "'lightning.pytorch.cli'" in made.stdout
    assert "'pytorch_lightning.cli'" not in made.stdout
    assert "lightning.pytorch" in container.summary["versions"]
    assert container.summary["class_path"] == "tiny_lightning.OtherModel"


def test_a_project_may_subclass(container, one_namespace, monkeypatch):
    monkeypatch.delitem(sys.modules, "own_cli", raising=False)
    import own_cli

    container.config("data: {batch_size: 2}\n", "own.yaml").hyperparameters(config="own.yaml", greeting="hi")
    cli = own_cli.make(run=False)
    assert cli.model.given["batch_size"] == cli.datamodule.batch_size == 2
    assert cli.datamodule.data_dir == str(container.channel("training"))
    assert config_of(cli)["greeting"] == "hi"
    assert config_of(cli)["sagemaker"]["export"] is True
    # Those that keep the job resumable come beside the project's own.
    checkpoint = next(callback for callback in cli.trainer.checkpoint_callbacks if callback.filename == "own")
    assert checkpoint.monitor == "val_loss"
    assert checkpoint.dirpath == str(container.base / "output" / "data" / "checkpoints")


def test_run_false_leaves_the_running_to_the_script(container):
    cli = container.cli()
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert container.summary["class_path"] == "tiny_model.TinyModel"


@pytest.mark.parametrize("with_subcommand", [True, False])
def test_arguments_as_a_mapping_count_as_typed(container, calls, with_subcommand):
    container.hyperparameters({"model.lr": 0.5, "model.size": 2, "data.batch_size": 2})
    given = {"model": {"init_args": {"size": 3}}, "trainer": {"max_epochs": 4}}
    cli = container.cli(run=True, args={"subcommand": "test", "test": given} if with_subcommand else {"fit": given})
    assert calls == ["test" if with_subcommand else "fit"]
    assert (cli.model.given["lr"], cli.model.given["size"], cli.datamodule.batch_size) == (0.5, 3, 2)
    assert cli.trainer.max_epochs == 4
    assert cli.datamodule.data_dir == str(container.channel("training"))


def test_arguments_as_a_list(container):
    cli = container.cli(args=["--model.lr", "3"])
    assert cli.model.given["lr"] == 3
    assert cli.datamodule.data_dir == str(container.channel("training"))


def test_arguments_as_a_mapping_without_subcommands(container):
    cli = container.cli(args={"data": {"class_path": "tiny_data.TinyData", "init_args": {"data_dir": "here"}}})
    assert cli.datamodule.data_dir == "here"
    with pytest.raises(LightningSMError, match=r"did you mean 'trainer\.max_epochs'"):
        container.cli(args={"trainer": {"max_epoch": 1}})


def test_arguments_as_a_mapping_outside_a_container(container):
    config = {
        "model": {"class_path": "tiny_model.TinyModel"},
        "data": {"class_path": "tiny_data.TinyData", "init_args": {"data_dir": "here"}},
    }
    assert container.leave().cli(args=config).datamodule.data_dir == "here"


@pytest.mark.parametrize("words", [["--config", "sections.yaml"], ["fit", "--config", "sections.yaml"]])
def test_a_config_in_sections(container, calls, words):
    container.config("fit: {model: {class_path: tiny_model.TinyModel, init_args: {size: 8}}}\n", "sections.yaml")
    container.hyperparameters(config=None, data="tiny_data.TinyData")
    cli = container.cli(*words, run=True)
    assert cli.model.given["size"] == 8


def test_help_shows_the_group(container, capsys):
    for words in (["fit", "--help"], ["--help"]):
        with pytest.raises(SystemExit) as caught:
            container.cli(*words, run=True)
        assert caught.value.code == 0
        out = capsys.readouterr().out
        assert "--sagemaker.channels" in out
        assert "Which channel feeds which" in out
    container.leave()
    with pytest.raises(SystemExit):
        container.cli("fit", "--help", run=True)
    assert "--sagemaker.model_dir" in capsys.readouterr().out


def test_print_config_shows_what_was_routed(container, capsys):
    with pytest.raises(SystemExit) as caught:
        container.cli("fit", "--print_config", run=True)
    assert caught.value.code in (0, None)
    assert f"data_dir: {container.channel('training')}" in capsys.readouterr().out


def test_outside_a_container_it_is_lightning_cli(container):
    container.leave()
    namespace = Namespace("pytorch_lightning")
    module, name = cli_base_path(namespace).split(":")
    base = getattr(namespace.module(module), name)
    words = ("--config", "config.yaml", "--data.data_dir=x", "--trainer.callbacks=ModelCheckpoint")
    # Before 1.7 Lightning's own CLI reads `data` only where it is given a class for it.
    data = {"datamodule_class": namespace.module().LightningDataModule, "subclass_mode_data": True}
    ours, theirs = container.cli(*words, **data), container.cli(*words, cls=base, **data)
    config, expected = config_of(ours), config_of(theirs)
    assert config.pop("sagemaker") == asdict(SageMakerOptions())
    assert str(config) == str(expected)
    assert [type(each).__name__ for each in ours.trainer.callbacks] == [
        type(each).__name__ for each in theirs.trainer.callbacks
    ]
    assert not ours.routing


def test_the_class_is_public(one_namespace):
    import lightning_sm

    assert issubclass(sagemaker_cli_class(Namespace("pytorch_lightning")), lightning_sm.SageMakerCLI)


@pytest.mark.slow
def test_no_garbage_is_collected_while_the_project_is_imported(container):
    code = (
        "import gc, sys; from lightning_sm import cli; find = cli.find_model_class;"
        "seen = [gc.get_freeze_count() < 10_000];"
        "cli.find_model_class = lambda *given: (seen.append(gc.isenabled()), find(*given))[1];"
        "cli.main(); print(seen, gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    ran = container.run("-c", code, "fit", "--trainer.fast_dev_run=true")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[True, False] True True"
