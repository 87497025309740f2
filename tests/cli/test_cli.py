import os
import re
import sys
from dataclasses import asdict

import pytest

from lightning_sm import SageMakerOptions
from lightning_sm._lightning import NAMESPACES, Namespace
from lightning_sm._lightning.legacy import cli_base_path
from lightning_sm.cli import main
from lightning_sm.errors import LightningSMError
from tests.projects.container import TINY, config_of

LIGHTNING = NAMESPACES[0]
OTHER = """
trainer: {max_epochs: 1, enable_progress_bar: false, enable_model_summary: false, logger: false}
model: {class_path: other_model.TinyModel}
data: {class_path: other_data.TinyData}
"""


@pytest.mark.full
def test_two_lines_are_a_complete_entry_point(container):
    ran = container.run("train.py", "--config", "config.yaml")
    assert ran.returncode == 0, ran.stderr
    assert sorted(os.listdir(container.model)) == ["config.resolved.yaml", "config.yaml", "model.json", "model.pt"]
    assert ran.stderr.count("SageMaker settings:") == 1
    assert container.failure is None
    again = container.run("train.py", "--config", "config.yaml")
    assert again.returncode == 0, again.stderr


def test_a_broken_file_of_the_job_is_a_reason(container):
    container.opt_ml.write("inputdataconfig.json", "{broken")
    with pytest.raises(LightningSMError):
        main([])
    assert "inputdataconfig.json is not JSON" in container.failure
    os.unlink(container.base / "output" / "failure")
    with pytest.raises(LightningSMError):
        container.cli()
    assert container.failure.startswith("JobConfigError: ")


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_the_hyperparameter_subcommand(container, subcommand):
    container.hyperparameters(subcommand=subcommand)
    cli = container.cli("--config", "config.yaml", "--subcommand", subcommand, run=True)
    assert cli.trainer.state.fn == subcommand
    assert container.model.exists() == (subcommand == "fit")


def test_no_subcommand_outside_a_container_is_lightnings_own_error(container, capsys):
    container.leave()
    with pytest.raises(SystemExit):
        main(["--config", "config.yaml"])
    assert "usage" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.skipif(not LIGHTNING.is_installed, reason="needs the namespace lightning.pytorch")
def test_the_model_decides_on_the_namespace(container):
    for name in ("model", "data"):
        text = (TINY / f"tiny_{name}.py").read_text()
        container.config(text.replace("pytorch_lightning", "lightning.pytorch"), f"other_{name}.py")
    container.config(OTHER, "other.yaml").hyperparameters(config="other.yaml")
    made = container.run("-c", "import sys; from lightning_sm.cli import main; main(); print(sorted(sys.modules))")
    assert made.returncode == 0, made.stderr
    assert "'lightning.pytorch.cli'" in made.stdout
    assert "'pytorch_lightning.cli'" not in made.stdout
    assert "lightning.pytorch" in container.summary["versions"]
    assert container.summary["class_path"] == "other_model.TinyModel"


def test_the_config_of_a_project_whose_script_names_the_classes(container):
    (container.code / "config.yaml").write_text("trainer: {max_epochs: 1, logger: false}\nmodel: {size: 7}\n")
    container.hyperparameters(config=None)
    main(["fit", "--model", "tiny_model.TinyModel", "--data", "tiny_data.TinyData", "--config", "config.yaml"])
    assert container.summary["class_path"] == "tiny_model.TinyModel"


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


@pytest.mark.parametrize("with_subcommand", [True, False])
def test_arguments_as_a_mapping_count_as_typed(container, with_subcommand):
    container.hyperparameters({"model.lr": 0.5, "model.size": 2, "data.batch_size": 2})
    given = {"model": {"init_args": {"size": 3}}, "trainer": {"max_epochs": 2}}
    cli = container.cli(run=True, args={"subcommand": "test", "test": given} if with_subcommand else {"fit": given})
    assert cli.trainer.state.fn == ("test" if with_subcommand else "fit")
    assert (cli.model.given["lr"], cli.model.given["size"], cli.datamodule.batch_size) == (0.5, 3, 2)
    assert cli.trainer.max_epochs == 2
    assert cli.datamodule.data_dir == str(container.channel("training"))


@pytest.mark.parametrize(
    ("words", "in_job"), [(["fit", "--help"], True), (["--help"], True), (["fit", "--help"], False)]
)
def test_help_shows_the_group(container, capsys, words, in_job):
    if not in_job:
        container.leave()
    with pytest.raises(SystemExit) as caught:
        container.cli(*words, run=True)
    assert caught.value.code == 0
    assert re.search(r"--sagemaker\.channels .*Which channel feeds which", capsys.readouterr().out, re.DOTALL)


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
