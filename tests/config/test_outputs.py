import dataclasses
import importlib.util

import pytest

from lightning_sm._config.directories import directories
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.outputs import default_logger, route_outputs
from lightning_sm._config.routed import CheckpointRoutes, Routing
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import LoggerError
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


class TensorBoardLogger:
    def __init__(self, save_dir, name="net", version=None):
        pass


class OwnBoard(TensorBoardLogger):
    def __init__(self, colour="red", **kwargs):
        super().__init__(**kwargs)


class Remote:
    def __init__(self, url=None):
        pass


class ModelCheckpoint:
    def __init__(self, dirpath=None, monitor=None):
        pass


class OwnCheckpoint(ModelCheckpoint):
    pass


CLASSES = {
    cls.__name__: cls
    for cls in (CSVLogger, Derived, TensorBoardLogger, OwnBoard, Remote, ModelCheckpoint, OwnCheckpoint)
}


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """The packages that upload, which some environments lack, are looked for and not imported."""
    find = importlib.util.find_spec
    present = ("boto3", "tensorboard")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: name in present or find(name, *args))


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
    assert setting.config[1]["init_args"] == {"dirpath": "/ml/checkpoints/ckpts", "monitor": "m"}
    routed = route(
        tmp_path, f"trainer: {{callbacks: [Remote, {one}, {name}]}}", options=SageMakerOptions(checkpoint_dir="/c")
    )
    assert {key for key in routed if "callbacks" in key} == {
        "trainer.callbacks[1].init_args.dirpath",
        "trainer.callbacks[2].init_args.dirpath",
    }
    assert routed["trainer.callbacks[1].init_args.dirpath"].value == "/c/ckpts"
    assert routed["trainer.callbacks[2].init_args.dirpath"].value == "/c"


@pytest.mark.parametrize(
    ("dirpath", "expected"),
    [
        ("checkpoints/fold0", "/c/checkpoints/fold0"),
        ("./a/../b/", "/c/b"),
        ("{here}/runs/a", "/c/runs/a"),
        ("/scratch/me/run-7/best", "/c/scratch/me/run-7/best"),
        (".", "/c"),
        ("{here}", "/c"),
        (None, "/c"),
        ("/c", "/c"),
        ("/c/fold0", "/c/fold0"),
    ],
)
@pytest.mark.parametrize("url", ["", "s3://bucket"])
def test_a_checkpoint_directory_keeps_its_path(tmp_path, monkeypatch, dirpath, expected, url):
    monkeypatch.chdir(tmp_path)
    given = dirpath and dirpath.format(here=tmp_path)
    if url and given and given.startswith("/c"):
        expected = f"/c{given}"  # it is of this host, and the job's is not
    assert CheckpointRoutes(f"{url}/c", [given]).place(given) == url + expected


def test_only_equal_checkpoint_directories_become_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["data/x", "/data/x", "data/x", f"{tmp_path}/data/x", "y", "/c/y", ".", None]
    routes = CheckpointRoutes("/c", given)
    places = ["/c/data/x", "/c/data/x-2", "/c/data/x", "/c/data/x", "/c/y-2", "/c/y", "/c", "/c"]
    assert [routes.place(path) for path in given] == places
    entries = [f"{{class_path: ModelCheckpoint, init_args: {{dirpath: {path}}}}}" for path in given[:-1]]
    routed = route(
        tmp_path, f"trainer: {{callbacks: [{', '.join(entries)}]}}", options=SageMakerOptions(checkpoint_dir="/c")
    )
    assert [value.value for key, value in routed.items() if "callbacks" in key] == places[:-1]


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


NAMED = dataclasses.replace(JOB, name="job-1", sources={**JOB.sources, "name": "TRAINING_JOB_NAME"})
BOARD = dataclasses.replace(
    NAMED, tensorboard_dir="/ml/output/tensorboard", sources={**NAMED.sources, "tensorboard_dir": "tensorboard.json"}
)


@pytest.mark.parametrize("name", ["TensorBoardLogger", "OwnBoard"])
@pytest.mark.parametrize("typed", [False, True])
def test_tensorboard_files_for_s3_are_written_locally_and_uploaded(tmp_path, name, typed):
    config = "" if typed else ", init_args: {save_dir: 's3://b/runs/'}"
    words = ["--trainer.logger.save_dir=s3://b/runs/"] if typed else []
    routed = route(tmp_path, f"trainer: {{logger: {{class_path: {name}{config}}}}}", words, job=NAMED)
    setting, version = routed["trainer.logger.init_args.save_dir"], routed["trainer.logger.init_args.version"]
    source = "the command line" if typed else "a.yaml"
    assert str(setting) == (
        f"{setting.key} = /ml/out/tensorboard/b/runs ← uploaded to s3://b/runs/ (replaces s3://b/runs/ from {source})"
    )
    assert str(version) == f"{version.key} = job-1 ← the job's name, TRAINING_JOB_NAME"
    arguments = {"save_dir": "/ml/out/tensorboard/b/runs", "version": "job-1"}
    assert setting.config == ("trainer.logger", {"class_path": name, "init_args": arguments})
    assert Routing((setting, version)).uploads == {"/ml/out/tensorboard/b/runs": "s3://b/runs/"}


def test_a_version_that_is_set_stays_and_a_job_without_a_name_sets_none(tmp_path):
    config = "trainer: {{logger: {{class_path: TensorBoardLogger, init_args: {{save_dir: 's3://b/x'{}}}}}}}"
    for job, more in ((NAMED, ", version: 3"), (JOB, "")):
        routed = route(tmp_path, config.format(more), job=job)
        assert routed["trainer.logger.init_args.save_dir"].value == "/ml/out/tensorboard/b/x"
        assert "trainer.logger.init_args.version" not in routed


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", "/ml/out/tensorboard/bucket"),
        ("s3://b//../x/./y/", "/ml/out/tensorboard/b/x/y"),
        ("memory://m/x", "/ml/out/tensorboard/m/x"),
    ],
)
def test_the_local_directory_of_a_url(tmp_path, url, expected):
    config = f"trainer: {{logger: [{{class_path: TensorBoardLogger, init_args: {{save_dir: '{url}'}}}}]}}"
    assert route(tmp_path, config)["trainer.logger[0].init_args.save_dir"].value == expected


def test_a_remote_output_directory(tmp_path):
    options = SageMakerOptions(output_dir="s3://b/out")
    config = "trainer: {logger: [{class_path: TensorBoardLogger}, CSVLogger]}"
    routed = route(tmp_path, config, options=options, job=NAMED)
    assert routed["trainer.logger[0].init_args.save_dir"].upload == "s3://b/out"
    assert routed["trainer.logger[0].init_args.save_dir"].value == "/ml/out/tensorboard/b/out"
    assert routed["trainer.logger[1].init_args.save_dir"].value == "s3://b/out"


@pytest.mark.parametrize("typed", [False, True])
def test_a_local_directory_that_was_chosen_stays_beside_a_remote_output_directory(tmp_path, typed):
    options = SageMakerOptions(output_dir="s3://b/out")
    chosen = "/mine" if typed else "/ml/output/own"
    config = "" if typed else f", init_args: {{save_dir: {chosen}}}"
    words = [f"--trainer.logger.save_dir={chosen}"] if typed else []
    given = f"trainer: {{logger: {{class_path: TensorBoardLogger{config}}}}}"
    routed = route(tmp_path, given, words, options=options, job=NAMED)
    assert not [key for key in routed if key.startswith("trainer.logger")]


def test_loggers_of_one_directory_have_versions_of_their_own(tmp_path):
    entry = "{{class_path: TensorBoardLogger, init_args: {{save_dir: 's3://b/x'{}}}}}"
    more = ("", "", ", name: other", ", name: lightning_logs", ", version: 3")
    routed = route(tmp_path, f"trainer: {{logger: [{', '.join(map(entry.format, more))}]}}", job=NAMED)
    found = [routed.get(f"trainer.logger[{index}].init_args.version") for index in range(5)]
    assert [each and each.value for each in found] == ["job-1", "job-1-2", "job-1", "job-1-3", None]


def test_the_jobs_tensorboard_directory(tmp_path):
    config = "trainer: {logger: [TensorBoardLogger, CSVLogger, {class_path: OwnBoard, init_args: {save_dir: logs}}]}"
    routed = route(tmp_path, config, job=BOARD)
    values = [routed[f"trainer.logger[{index}].init_args.save_dir"].value for index in range(3)]
    assert values == ["/ml/output/tensorboard", "/ml/out", "/ml/output/tensorboard"]
    line = str(routed["trainer.logger[0].init_args.save_dir"])
    assert line == "trainer.logger[0].init_args.save_dir = /ml/output/tensorboard ← tensorboard.json"
    assert not Routing(tuple(routed.values())).uploads
    remote = "trainer: {logger: {class_path: OwnBoard, init_args: {save_dir: 's3://b/x'}}}"
    assert route(tmp_path, remote, job=BOARD)["trainer.logger.init_args.save_dir"].upload == "s3://b/x"


def test_a_missing_package_is_an_error_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "boto3" else object())
    config = "trainer: {logger: {class_path: TensorBoardLogger, init_args: {save_dir: 's3://b/x'}}}"
    with pytest.raises(LoggerError, match=r"boto3 cannot be imported. HINT: pip install 'lightning-sm\[s3\]'"):
        route(tmp_path, config)
