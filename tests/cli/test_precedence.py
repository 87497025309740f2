"""Typed arguments, hyperparameters, SageMaker's directories, config files, defaults: which of two wins."""

import pytest

from tests.projects.container import config_of

CONFIG_SAYS = "data: {class_path: tiny_data.TinyData, init_args: {data_dir: %s}}\n"
TYPED, HYPER = ("--data.data_dir", "typed"), {"data.data_dir": "hyper"}


@pytest.mark.parametrize(
    ("config", "hyperparameters", "words", "expected"),
    [
        ("config", HYPER, TYPED, "typed"),
        (None, {}, ("--data.init_args.data_dir=typed",), "typed"),
        ("config", HYPER, (), "hyper"),
        ("config", HYPER, ("--config", "more.yaml"), "hyper"),
        (None, {"data": {"init_args": {"data_dir": "hyper"}}}, (), "hyper"),
        (None, {}, (), "{channel}"),
        *((path, {}, (), "{channel}") for path in ("data", "/data", "~/data", "../data", "{code}/data")),
        *((path, {}, (), path) for path in ("'s3://bucket/x'", "'hf://owner/name'", "{channel}/part")),
        # What a later file on the line replaces was not set for this run.
        ("later", {}, (*TYPED, "--config", "more.yaml"), "{channel}"),
        ("later", {}, ("--config", "more.yaml", *TYPED), "typed"),
    ],
)
def test_where_data_come_from(container, config, hyperparameters, words, expected):
    places = {"channel": container.channel("training"), "code": container.code}
    configs = ["config.yaml"]
    if config is not None:
        container.config(CONFIG_SAYS % config.format(**places), "more.yaml")
        configs += ["more.yaml"] if "--config" not in words else []
    found = container.hyperparameters({"config": configs, **hyperparameters}).cli(*words).datamodule.data_dir
    assert found == expected.format(**places).strip("'")


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


def test_the_projects_own_defaults_are_above_the_classes(container):
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "mine"}}
    cli = container.cli(trainer_defaults={"max_epochs": 7, "num_nodes": 1, "strategy": "ddp", "logger": logger})
    config = config_of(cli)["trainer"]
    assert (config["strategy"], config["logger"]["init_args"]["name"]) == ("ddp", "mine")
    assert "trainer.strategy" not in cli.routing.sources
    assert "trainer.num_nodes" in cli.routing.sources
    assert cli.trainer.logger.save_dir == str(container.base / "output" / "data")


@pytest.mark.parametrize("says", ["s3://bucket/x", "local/x"])
def test_config_files_that_the_project_always_reads(container, says):
    container.hyperparameters(config=None)
    container.config(CONFIG_SAYS % says, "always.yaml")
    files = [str(container.code / name) for name in ("config.yaml", "always.yaml")]
    cli = container.cli(parser_kwargs={"default_config_files": files})
    is_local = says == "local/x"
    assert cli.datamodule.data_dir == (str(container.channel("training")) if is_local else says)
    assert (f"(replaces {says} from always.yaml)" in cli.routing.table()) == is_local
    assert type(cli.model).__name__ == "TinyModel"
