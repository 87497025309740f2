import importlib.util

import pytest

from lightning_sm._config.directories import default_logger, directories, route_outputs
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._sagemaker.job import TrainingJob
from tests.config.given import context_of, settings_of

JOB = TrainingJob(
    in_container=True,
    base_dir="/ml",
    output_data_dir="/ml/out",
    checkpoint_dir="/ml/checkpoints",
    model_dir="/ml/model",
    sources={"output_data_dir": "SM_OUTPUT_DATA_DIR", "checkpoint_dir": "checkpointconfig.json"},
)


class CSVLogger:
    def __init__(self, save_dir, name=None):
        pass


class Derived(CSVLogger):
    def __init__(self, more=1, **kwargs):
        super().__init__(**kwargs)


class Remote:
    def __init__(self, url=None):
        pass


class ModelCheckpoint:
    def __init__(self, dirpath=None, monitor=None):
        pass


class OwnCheckpoint(ModelCheckpoint):
    pass


CLASSES = {cls.__name__: cls for cls in (CSVLogger, Derived, Remote, ModelCheckpoint, OwnCheckpoint)}


def route(tmp_path, config="", words=(), options=None, job=JOB, **hyperparameters):
    (tmp_path / "a.yaml").write_text(config or "{}")
    settings = settings_of([str(tmp_path / "a.yaml")], hyperparameters, list(words))
    return {setting.key: setting for setting in route_outputs(context_of(job, settings, options, None, CLASSES.get))}


def run(**options):
    return context_of(JOB, options=SageMakerOptions(**options))


def test_directories():
    assert run().output_dir == ("/ml/out", "SM_OUTPUT_DATA_DIR")
    assert run(output_dir="/x").output_dir == ("/x", "sagemaker.output_dir")
    assert run().checkpoint_dir == ("/ml/checkpoints", "checkpointconfig.json")
    assert run(checkpoint_dir="/x").checkpoint_dir == ("/x", "sagemaker.checkpoint_dir")


def test_what_no_setting_names_is_told():
    assert directories(run()) == (
        "checkpoints in /ml/checkpoints ← checkpointconfig.json",
        "trained model in /ml/model ← SageMaker's layout",
    )
    assert directories(run(export=False, checkpoint_dir="/c")) == ("checkpoints in /c ← sagemaker.checkpoint_dir",)
    assert directories(run(model_dir="/m"))[1] == "trained model in /m ← sagemaker.model_dir"


@pytest.mark.parametrize("installed", [True, False])
def test_the_default_logger(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    expected = "TensorBoardLogger" if installed else "CSVLogger"
    assert default_logger("lightning.pytorch") == f"lightning.pytorch.loggers.{expected}"


@pytest.mark.parametrize(
    "config", ["", "trainer: {logger: true}", "trainer: {logger: null}", "trainer: {max_epochs: 1}"]
)
def test_nobody_names_a_logger(tmp_path, config):
    setting = route(tmp_path, config)["trainer.logger.init_args.save_dir"]
    assert setting.value == "/ml/out"
    assert setting.config == (
        "trainer.logger",
        {"class_path": default_logger("pytorch_lightning"), "init_args": {"save_dir": "/ml/out"}},
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("trainer: {logger: false}", ()),
        ("trainer: {logger: {class_path: Remote}}", ()),
        ("trainer: {logger: {class_path: Unknown, init_args: {save_dir: x}}}", ()),
        ("trainer: {logger: {save_dir: x}}", ()),
        ("trainer: {logger: {class_path: CSVLogger, init_args: {save_dir: 's3://b/x'}}}", ()),
        ("trainer: {logger: {class_path: CSVLogger, init_args: {save_dir: /ml/out/own}}}", ()),
        ("trainer: {logger: []}", ()),
        ("trainer: {logger: 5}", ()),
        ("trainer: {barebones: true}", ()),
        ("trainer: {logger: CSVLogger}", ["--trainer.logger.save_dir=x"]),
    ],
)
def test_loggers_that_stay(tmp_path, config, words):
    assert set(route(tmp_path, config, words)) == {"trainer.default_root_dir"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("CSVLogger", {"class_path": "CSVLogger", "init_args": {"save_dir": "/ml/out"}}),
        ("{class_path: Derived}", {"class_path": "Derived", "init_args": {"save_dir": "/ml/out"}}),
        (
            "{class_path: CSVLogger, init_args: {save_dir: logs, name: n}, dict_kwargs: {k: 1}}",
            {"class_path": "CSVLogger", "init_args": {"save_dir": "/ml/out", "name": "n"}, "dict_kwargs": {"k": 1}},
        ),
    ],
)
def test_one_logger(tmp_path, config, expected):
    setting = route(tmp_path, f"trainer: {{logger: {config}}}")["trainer.logger.init_args.save_dir"]
    assert setting.config == ("trainer.logger", expected)


def test_a_list_of_loggers(tmp_path):
    config = """trainer:
      logger:
        - CSVLogger
        - {class_path: Remote, init_args: {url: u}}
        - {class_path: Derived, init_args: {save_dir: logs}}
        - {class_path: CSVLogger, init_args: {save_dir: "s3://b"}}
    """
    routed = route(tmp_path, config)
    first, third = (routed[f"trainer.logger[{index}].init_args.save_dir"] for index in (0, 2))
    assert set(routed) == {"trainer.default_root_dir", first.key, third.key}
    assert str(third) == f"{third.key} = /ml/out ← SM_OUTPUT_DATA_DIR (replaces logs from a.yaml)"
    assert first.config == third.config
    assert [entry["init_args"] for entry in first.config[1]] == [
        {"save_dir": "/ml/out"},
        {"url": "u"},
        {"save_dir": "/ml/out"},
        {"save_dir": "s3://b"},
    ]


def test_another_logger_by_hyperparameter_takes_no_arguments_of_the_old(tmp_path):
    config = "trainer: {logger: {class_path: Remote, init_args: {url: u}}}"
    routed = route(tmp_path, config, trainer={"logger": "CSVLogger"})
    assert routed["trainer.logger.init_args.save_dir"].config[1]["init_args"] == {"save_dir": "/ml/out"}


def test_a_whole_logger_by_hyperparameter_keeps_its_directory(tmp_path):
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "mine"}}
    assert set(route(tmp_path, trainer={"logger": logger})) == {"trainer.default_root_dir"}
    assert set(route(tmp_path, trainer={"logger": [logger]})) == {"trainer.default_root_dir"}


@pytest.mark.parametrize("name", ["ModelCheckpoint", "OwnCheckpoint"])
def test_checkpoints(tmp_path, name):
    one = f"{{class_path: {name}, init_args: {{dirpath: ckpts, monitor: m}}}}"
    (setting,) = (
        setting for key, setting in route(tmp_path, f"trainer: {{callbacks: {one}}}").items() if "callbacks" in key
    )
    assert setting.key == "trainer.callbacks.init_args.dirpath"
    assert setting.config[1]["init_args"] == {"dirpath": "/ml/checkpoints", "monitor": "m"}
    routed = route(
        tmp_path, f"trainer: {{callbacks: [Remote, {one}, {name}]}}", options=SageMakerOptions(checkpoint_dir="/c")
    )
    assert {key for key in routed if "callbacks" in key} == {
        "trainer.callbacks[1].init_args.dirpath",
        "trainer.callbacks[2].init_args.dirpath",
    }
    assert routed["trainer.callbacks[1].init_args.dirpath"].value == "/c"


@pytest.mark.parametrize(
    ("config", "words", "expected"),
    [
        ("", (), "/ml/out"),
        ("trainer: {default_root_dir: here}", (), "/ml/out"),
        ("trainer: {default_root_dir: /ml/other}", (), None),
        ("trainer: {default_root_dir: 's3://b/x'}", (), None),
        ("", ["--trainer.default_root_dir=here"], None),
    ],
)
def test_default_root_dir(tmp_path, config, words, expected):
    routed = route(tmp_path, config, words).get("trainer.default_root_dir")
    assert (routed and routed.value) == expected
