"""In a job each way of setting something means what it means to the same parser on a laptop."""

import os

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm.cli import sagemaker_cli_class
from lightning_sm.errors import HyperparameterError, TopologyError
from tests.helpers.environ import torchrun
from tests.projects.container import loggers_of

PL = Namespace("pytorch_lightning")
STOP = "{class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 2}}"
LIST = f"[{STOP}, LearningRateMonitor]"


def named(cli, name):
    return [callback for callback in cli.trainer.callbacks if type(callback).__name__ == name]


@pytest.mark.parametrize("before", ["{}", "trainer: {callbacks: [LearningRateMonitor]}"])
def test_a_config_adds_to_callbacks_and_loggers(container, before):
    container.config(before, "before.yaml")
    container.config(f"trainer: {{callbacks+: [{STOP}], logger+: [CSVLogger]}}", "more.yaml")
    cli = container.hyperparameters(config=["config.yaml", "before.yaml", "more.yaml"]).cli()
    assert [callback.patience for callback in named(cli, "EarlyStopping")] == [2]
    assert len(named(cli, "LearningRateMonitor")) == (before != "{}")
    assert [type(logger).__name__ for logger in loggers_of(cli.trainer)] == ["CSVLogger"]
    assert loggers_of(cli.trainer)[0].save_dir == str(container.base / "output" / "data")


def test_what_a_person_adds_stays_and_the_rest_is_routed(container):
    container.config("trainer: {logger: [{class_path: CSVLogger, init_args: {save_dir: logs}}]}", "log.yaml")
    cli = container.cli(
        "--config", "log.yaml", "--trainer.logger+=CSVLogger", "--trainer.logger.save_dir=mine",
        "--trainer.logger+=CSVLogger",
    )  # fmt: skip
    output = str(container.base / "output" / "data")
    assert [logger.save_dir for logger in loggers_of(cli.trainer)] == [output, "mine", output]


SECTIONED, PLAIN = "validate: {trainer: {max_epochs: %s}}\n", "trainer: {max_epochs: %s}\n"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([PLAIN, SECTIONED], 2),
        ([SECTIONED, PLAIN], 2),
        ([PLAIN, SECTIONED, PLAIN, SECTIONED], 4),
    ],
)
def test_config_files_apply_in_their_order_with_and_without_sections(container, texts, expected):
    names = [f"{number}.yaml" for number in range(len(texts))]
    for number, text in enumerate(texts):
        container.config(text % (number + 1), names[number])
    container.hyperparameters(config=["config.yaml", *names])
    assert container.cli("validate", run=True).trainer.max_epochs == expected


def test_settings_beside_a_section_are_refused_as_on_a_laptop(container):
    container.config("seed_everything: 5\nfit: {trainer: {max_epochs: 4}}\ntest: {verbose: true}", "sections.yaml")
    with pytest.raises(HyperparameterError, match=r"sections\.yaml has seed_everything beside its section 'fit'"):
        container.hyperparameters(config=["config.yaml", "sections.yaml"]).cli("fit", run=True)


@pytest.mark.parametrize("group", ["trainer", "sagemaker", "data", "model"])
@pytest.mark.parametrize("value", ["5", "true", "[]", "[max_epochs: 3]"])
def test_a_group_that_has_no_keys_is_refused_as_on_a_laptop(container, group, value):
    from tiny_data import TinyData
    from tiny_model import TinyModel

    (container.code / "config.yaml").write_text(f"{group}: {value}")
    with pytest.raises(HyperparameterError, match=rf"config\.yaml sets {group} to .* HINT: "):
        container.cli(model_class=TinyModel, datamodule_class=TinyData)


def test_an_empty_trainer_is_refused_as_on_a_laptop_unless_an_argument_sets_some_of_it(container):
    container.config("trainer:\nseed_everything: 1", "empty.yaml").hyperparameters(config=["config.yaml", "empty.yaml"])
    with pytest.raises(HyperparameterError, match=r"empty\.yaml sets trainer to null.* HINT: "):
        container.cli()
    assert named(container.cli("--trainer.max_epochs=2"), "AutoResume")


WITH_PATHS = """
import os
from typing import Optional
from jsonargparse.typing import Path_fr
from tiny_model import TinyModel


class WithPath(TinyModel):
    def __init__(self, file: Optional[Path_fr] = None):
        super().__init__()
        self.file = file and os.path.realpath(file if isinstance(file, str) else str(file.absolute))
"""


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "config", "is_right"),
    [
        ("model", "model.yaml", "config", lambda cli: getattr(cli.model, "given", {}).get("size") == 11),
        ("trainer", "t.yaml", "config", lambda cli: cli.trainer.max_epochs == 12),
        ("trainer.callbacks", "cb.yaml", "config", lambda cli: len(named(cli, "EarlyStopping")) == 1),
        ("trainer.callbacks.patience", 7, "stop", lambda cli: named(cli, "EarlyStopping")[0].patience == 7),
        ("model.file", "beside.txt", "paths", lambda cli: cli.model.file == os.path.realpath("beside.txt")),
    ],
)
def test_a_hyperparameter_means_what_the_same_words_mean(container, typed, key, value, config, is_right):
    container.config(WITH_PATHS, "with_paths.py").config("text", "beside.txt")
    container.config("class_path: tiny_model.TinyModel\ninit_args: {size: 11}\n", "model.yaml")
    container.config("max_epochs: 12\n", "t.yaml").config(LIST, "cb.yaml")
    container.config(f"trainer: {{callbacks: [LearningRateMonitor, {STOP}]}}", "stop.yaml")
    container.config("model: {class_path: with_paths.WithPath}", "paths.yaml")
    configs = list(dict.fromkeys(["config.yaml", f"{config}.yaml"]))
    container.hyperparameters({"config": configs, **({} if typed else {key: value})})
    assert is_right(container.cli(*([f"--{key}={value}"] if typed else [])))


@pytest.mark.parametrize("mode", ["omegaconf", "omegaconf+"])
def test_interpolation_within_a_routed_list(container, mode):
    pytest.importorskip("omegaconf")
    container.config(
        "model: {init_args: {size: 5}}\n"
        "trainer:\n  callbacks:\n"
        "    - {class_path: ModelCheckpoint, init_args: {dirpath: ckpts, every_n_epochs: '${model.init_args.size}'}}\n",
        "own.yaml",
    )
    cli = container.hyperparameters(config=["config.yaml", "own.yaml"]).cli(parser_kwargs={"parser_mode": mode})
    (saver,) = [each for each in cli.trainer.checkpoint_callbacks if each._every_n_epochs == 5]
    assert saver.dirpath == str(container.base / "output" / "data" / "checkpoints" / "ckpts")


@pytest.mark.parametrize("text", ["*.png", "a: b: c"])
def test_a_variable_of_lightning_cli_is_set_for_this_run(container, in_environ, text):
    from tiny_model import TinyModel

    root, nodes = {"PL_TRAINER__DEFAULT_ROOT_DIR": "/data/mine"}, {"PL_TRAINER__NUM_NODES": "1"}
    in_environ({**root, **nodes, "PL_MODEL__TEXT": text})  # which is no YAML
    container.hyperparameters(config=[])
    cli = container.cli(model_class=TinyModel, parser_kwargs={"default_env": True})
    assert (cli.trainer.default_root_dir, cli.model.given["text"]) == ("/data/mine", text)
    assert not {"trainer.default_root_dir", "trainer.num_nodes"} & set(cli.routing.sources)
    unread = container.cli(model_class=TinyModel)  # LightningCLI does not read them then
    assert "trainer.default_root_dir" in unread.routing.sources


def test_the_scripts_own_hyperparameters(container):
    container.hyperparameters({"run-name": "a", "fold": 3, "model.size": 9})
    words = ["--run-name", "a", "--fold", "3", "--model.size", "9"]
    cli = container.cli(*words, ignore_hyperparameters=["run_name", "--fold"])
    assert cli.model.given["size"] == 9
    with pytest.raises(HyperparameterError, match="ignore_hyperparameters"):
        container.cli(*words, ignore_hyperparameters="fold")


def test_a_subcommand_of_the_project_that_trains_is_resumable_and_exports(container):
    if PL.version < (1, 7):
        pytest.skip("this Lightning looks for subcommands in its Trainer only")

    class Trainer(PL.module().Trainer):
        def tune_and_fit(self, model, **kwargs):
            """Train."""
            self.fit(model, **kwargs)

    class OwnCLI(sagemaker_cli_class(PL)):
        @staticmethod
        def subcommands():
            return {**PL.module("cli").LightningCLI.subcommands(), "tune_and_fit": {"model", "kwargs"}}

        def tune_and_fit(self, model, **kwargs):
            self.trainer.fit(model, datamodule=self.datamodule)

    container.hyperparameters(subcommand="tune_and_fit", **{"trainer.logger": False})
    cli = container.cli(cls=OwnCLI, run=True, trainer_class=Trainer)
    assert {"AutoResume", "ModelExport"} <= {type(each).__name__ for each in cli.trainer.callbacks}
    assert (container.model / "model.pt").exists()


def test_a_variable_that_names_another_world_is_refused_as_a_word_is(container, in_environ):
    in_environ({**torchrun(0, 2, 0, 1, 0, 2), "PL_TRAINER__NUM_NODES": "3"})
    with pytest.raises(TopologyError, match="the variable PL_TRAINER__NUM_NODES sets num_nodes=3"):
        container.cli(parser_kwargs={"default_env": True})


REQUIRED = """
from tiny_model import TinyModel
from tiny_data import TinyData


class NeedsDepth(TinyModel):
    def __init__(self, depth: int, width: int = 3):
        super().__init__()
        self.own = (depth, width)


class NeedsBatch(TinyData):
    def __init__(self, data_dir: str, batch: int):
        super().__init__(data_dir, batch_size=batch)
"""


@pytest.mark.parametrize("layer", ["config", "hyperparameter", "typed"])
def test_a_later_layer_may_bring_what_a_class_requires(container, layer):
    container.config(REQUIRED, "required.py")
    container.config(
        "model: {class_path: required.NeedsDepth, init_args: {width: 5}}\ndata: {class_path: required.NeedsBatch}",
        "without.yaml",
    )
    container.config("model: {init_args: {depth: 4}}\ndata: {init_args: {batch: 2}}", "with.yaml")
    configs = ["without.yaml", "with.yaml"] if layer == "config" else ["without.yaml"]
    values = {"model.depth": 4, "data.batch": 2}
    container.hyperparameters({"config": configs, **(values if layer == "hyperparameter" else {})})
    cli = container.cli(*([f"--{key}={value}" for key, value in values.items()] if layer == "typed" else []))
    assert (cli.model.own, cli.datamodule.batch_size) == ((4, 5), 2)
    assert cli.datamodule.data_dir == str(container.channel("training"))


def test_a_parser_that_refuses_a_channel_is_told_to_whom_it_belongs(container):
    container.config(
        "import enum\nfrom tiny_data import TinyData\n"
        "class Part(enum.Enum):\n    one = 1\n"
        "class Parts(TinyData):\n    def __init__(self, train: 'Part' = Part.one):\n        super().__init__('x')\n",
        "parts.py",
    )
    container.channels("train").hyperparameters({"data": "parts.Parts", "sagemaker.channels.train": "data.train"})
    with pytest.raises(HyperparameterError, match=r"HINT: The channel 'train' feeds data.init_args.train; set sagemak"):
        container.cli()
    assert "or to '' for none" in container.failure


def test_a_seed_that_is_set_tells_one_training_from_another(container):
    """As that of each run of a loop in an entry point. One that Lightning draws is another at each start of a job."""

    def series(*words):
        return named(container.cli(*words), "AutoResume")[0].identity.series

    in_file = series()
    config = container.code / "config.yaml"
    config.write_text(config.read_text().replace("seed_everything: 1", "seed_everything: true"))
    drawn = series()
    assert in_file == series("--seed_everything=1")
    assert len({in_file, drawn, series("--seed_everything=2")}) == 3
    assert series() == drawn
