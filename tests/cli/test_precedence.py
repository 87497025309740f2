"""The design's table, pair by pair: typed, hyperparameter, SageMaker's directories, config files, defaults."""

import pytest

from lightning_sm.errors import HyperparameterError
from tests.projects.container import config_of

CONFIG_SAYS = "data: {class_path: tiny_data.TinyData, init_args: {data_dir: %s}}\n"


def data_dir(container, *words, **arguments):
    return container.cli(*words, **arguments).datamodule.data_dir


def with_config(container, path, **hyperparameters):
    container.config(CONFIG_SAYS % path, "more.yaml")
    return container.hyperparameters({"config": ["config.yaml", "more.yaml"], **hyperparameters})


def test_typed_beats_hyperparameter(container):
    container.hyperparameters({"data.data_dir": "hyper"})
    assert data_dir(container, "--data.data_dir", "typed") == "typed"
    assert data_dir(container, "--data.init_args.data_dir=typed") == "typed"


def test_typed_beats_sagemaker(container):
    assert data_dir(container, "--data.data_dir", "typed") == "typed"


def test_an_abbreviation_is_no_key(container):
    with pytest.raises(HyperparameterError, match=r"trainer\.max_ep\b.* HINT: .*trainer\.max_epochs"):
        container.cli("--trainer.max_ep=3")


def test_typed_beats_config(container):
    assert container.cli("--data.batch_size=3", "--config", "config.yaml").datamodule.batch_size == 3


def test_typed_beats_default(container):
    assert container.cli("--model.lr=3").model.given["lr"] == 3


def test_hyperparameter_beats_sagemaker(container):
    container.hyperparameters({"data.data_dir": "hyper"})
    assert data_dir(container) == "hyper"
    container.hyperparameters({"data": {"init_args": {"data_dir": "whole"}}})
    assert data_dir(container) == "whole"


def test_hyperparameter_beats_config(container):
    with_config(container, "config", **{"data.data_dir": "hyper"})
    assert data_dir(container) == "hyper"
    assert data_dir(container, "--config", "more.yaml") == "hyper"


def test_hyperparameter_beats_default(container):
    assert container.hyperparameters({"model.lr": 3}).cli().model.given["lr"] == 3


def test_sagemaker_beats_a_local_path_in_a_config(container):
    for path in ("data", "/data", "~/data", "../data"):
        with_config(container, path)
        assert data_dir(container) == str(container.channel("training"))


def test_sagemaker_beats_default(container):
    container.channels("training", "validation")
    assert container.cli().datamodule.val_dir == str(container.channel("validation"))


@pytest.mark.parametrize("path", ["s3://bucket/x", "https://host/x", "hf://owner/name"])
def test_a_remote_url_in_a_config_stays(container, path):
    with_config(container, f"'{path}'")
    assert data_dir(container) == path


def test_a_path_below_the_base_directory_in_a_config_stays(container):
    inside = container.channel("training") / "part"
    with_config(container, inside)
    assert data_dir(container) == str(inside)
    with_config(container, container.code / "data")
    assert data_dir(container) == str(container.channel("training"))


def test_config_beats_config_in_their_order(container):
    container.config("model: {init_args: {lr: 2, size: 2}}", "b.yaml")
    container.config("model: {init_args: {lr: 1}}", "a.yaml")
    container.hyperparameters(config=["config.yaml", "a.yaml", "b.yaml"])
    assert container.cli().model.given["lr"] == 2
    given = container.cli("--config", "a.yaml").model.given
    assert (given["lr"], given["size"]) == (1, 2)


@pytest.mark.parametrize("in_job", [True, False])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model.lr=1", "--config", "more.yaml"], 2),
        (["--config", "more.yaml", "--model.lr=1"], 1),
        (["--model.lr=1", "-c", "more.yaml", "--model.init_args.lr=3"], 3),
        (["--model.lr", "1", "--config={model: {init_args: {lr: 4}}}"], 4),
    ],
)
def test_the_order_on_the_line_decides_on_a_laptop_and_in_a_job(container, words, expected, in_job):
    container.config("model: {init_args: {lr: 2}}", "more.yaml")
    if not in_job:
        words = ["--config", "config.yaml", "--data.data_dir=x", "--trainer.logger=False", *words]
    cli = (container if in_job else container.leave()).cli(*words)
    assert cli.model.given["lr"] == expected


def test_what_a_later_file_replaces_was_not_set_for_this_run(container):
    container.config(CONFIG_SAYS % "later", "later.yaml")
    channel = str(container.channel("training"))
    assert data_dir(container, "--data.data_dir=typed", "--config", "later.yaml") == channel
    assert data_dir(container, "--config", "later.yaml", "--data.data_dir=typed") == "typed"


def test_config_beats_default(container):
    container.config("model: {init_args: {lr: 2}}", "a.yaml")
    assert container.cli("--config", "a.yaml").model.given["lr"] == 2


def test_the_projects_own_defaults_are_above_the_classes(container):
    cli = container.cli(trainer_defaults={"max_epochs": 7, "num_nodes": 1, "strategy": "ddp"}, cls=None)
    assert config_of(cli)["trainer"]["strategy"] == "ddp"
    assert "trainer.strategy" not in cli.routing.sources
    assert "trainer.num_nodes" in cli.routing.sources


def test_the_projects_own_logger_is_routed(container):
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "mine"}}
    cli = container.cli(trainer_defaults={"logger": logger})
    assert type(cli.trainer.logger).__name__ == "CSVLogger"
    assert cli.trainer.logger.save_dir == str(container.base / "output" / "data")
    assert config_of(cli)["trainer"]["logger"]["init_args"]["name"] == "mine"


def test_a_config_file_that_the_project_always_reads(container):
    container.hyperparameters(config=None)
    container.config(CONFIG_SAYS % "s3://bucket/x", "always.yaml")
    files = ["config.yaml", "always.yaml"]
    cli = container.cli(parser_kwargs={"default_config_files": [str(container.code / name) for name in files]})
    assert cli.datamodule.data_dir == "s3://bucket/x"
    assert type(cli.model).__name__ == "TinyModel"


@pytest.mark.parametrize("word", ["--trainer.devices=1", "--trainer.num_nodes=1", "--trainer.accelerator=cpu"])
def test_a_given_part_of_the_world_is_not_routed(container, word):
    key = word[2:].partition("=")[0]
    assert key not in container.cli(word).routing.sources
    container.hyperparameters({key: word.partition("=")[2] if "acc" in word else 1})
    assert key not in container.cli().routing.sources
