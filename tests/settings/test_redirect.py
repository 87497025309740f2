import dataclasses
import importlib.util
from collections import UserList

import pytest
import yaml
from jsonargparse import Namespace as Described

from lightning_sm._lightning import Namespace
from lightning_sm._observe import names
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings import redirect as redirecting
from lightning_sm._settings.given import as_list
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm._settings.redirect import CheckpointRoutes, complete_loggers, redirect
from lightning_sm._settings.routed import Routing
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import LoggerError
from tests.projects.container import log_lines
from tests.settings.given import context_of, given_of

PL = Namespace("pytorch_lightning")
NAME = "cifar-2026-01-31-12-30-59-123"
JOB = TrainingJob(
    in_container=True,
    name=NAME,
    base_dir="/ml",
    output_data_dir="/ml/out",
    checkpoint_dir="/ml/checkpoints",
    sources={"output_data_dir": "SM_OUTPUT_DATA_DIR", "checkpoint_dir": "checkpointconfig.json", "name": "JOB_NAME"},
)
BOARD = dataclasses.replace(
    JOB, tensorboard_dir="/ml/output/tensorboard", sources={**JOB.sources, "tensorboard_dir": "tensorboard.json"}
)
ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/team"
URI = "https://mlflow.example"


class Remote(PL.module("loggers").Logger):
    """A logger without a directory."""

    name, version = "remote", "1"

    def log_metrics(self, *_):
        """Log nothing."""

    log_hyperparams = log_metrics


class MLFlowLogger(Remote):
    """What Lightning's has of its arguments, without the package."""

    __module__ = "pytorch_lightning.loggers"

    def __init__(self, experiment_name="lightning_logs", run_name=None, tracking_uri=None, save_dir="./mlruns"):
        super().__init__()
        self._experiment_name, self._run_name, self._tracking_uri = experiment_name, run_name, tracking_uri
        self._run_id = self._experiment_id = None


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """No package is missing, no server is asked, and no logger or checkpoint callback has been made before."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(names, "_given", type(names._given)())
    monkeypatch.setattr(redirecting, "_sources", {})
    monkeypatch.setattr(redirecting, "continue_run", lambda *_: None)
    monkeypatch.setattr(PL.module("loggers"), "MLFlowLogger", MLFlowLogger)


def described(class_path, **arguments):
    return Described(class_path=class_path, **({"init_args": Described(**arguments)} if arguments else {}))


def made(class_path, **arguments):
    place = "callbacks" if "Checkpoint" in class_path else "loggers"
    return getattr(PL.module(place), class_path)(**arguments)


def route(entries, key="trainer.logger", file=None, job=JOB, explicit=None, **options):
    context = context_of(job, given_of(file, **(explicit or {})), SageMakerOptions(**options))
    return {setting.key: setting for setting in redirect(entries, key, context)}


@pytest.mark.parametrize(("make", "at"), [(described, "trainer.logger.init_args"), (made, "trainer.logger")])
@pytest.mark.parametrize("name", ["CSVLogger", "TensorBoardLogger"])
def test_a_logger_writes_to_the_output_directory(make, at, name):
    logger = make(name, save_dir="logs")
    (setting,) = route(logger, file={"trainer": {"logger": {"save_dir": "logs"}}}).values()
    assert str(setting) == f"{at}.save_dir = /ml/out ← SM_OUTPUT_DATA_DIR (replaces logs from a.yaml)"
    assert (logger.init_args if make is described else logger).save_dir == "/ml/out"
    assert setting.old == "logs"


@pytest.mark.parametrize(("make", "key"), [
    (lambda: made("CSVLogger", save_dir="/fsx/out"), "trainer.logger"),
    (lambda: described("CSVLogger", save_dir="out"), "trainer.logger"),
    (lambda: made("ModelCheckpoint", dirpath="/fsx/out/best"), "trainer.callbacks"),
])  # fmt: skip
def test_what_writes_there_already_has_no_line(make, key):
    output = "out" if make().__class__ is Described else "/fsx/out"
    assert route(make(), key, output_dir=output, checkpoint_dir="/fsx/out") == {}


def test_of_several_loggers_each_has_a_line():
    entries = [described("CSVLogger"), described("CSVLogger", save_dir="s3://b"), made("CSVLogger", save_dir="logs")]
    lines = list(map(str, route([True, *entries]).values()))
    assert lines == [
        "trainer.logger[1].init_args.save_dir = /ml/out ← SM_OUTPUT_DATA_DIR",
        "trainer.logger[3].save_dir = /ml/out ← SM_OUTPUT_DATA_DIR (replaces logs from the script)",
    ]


@pytest.mark.parametrize(
    "entry",
    [False, [], 5, "text", Remote(), described(f"{__name__}.Remote"), described("Unknown", save_dir="x"),
     Described(save_dir="x"), described("CSVLogger", save_dir="/ml/out/own"), made("CSVLogger", save_dir="/ml/own")],
    ids=lambda entry: type(entry).__name__,
)  # fmt: skip
def test_what_stays(entry):
    assert route(entry) == {}


@pytest.mark.parametrize(
    ("dirpath", "expected"),
    [
        ("checkpoints/fold0", "/c/checkpoints/fold0"),
        ("./a/../b/", "/c/b"),
        ("{here}/runs/a", "/c/runs/a"),
        ("/scratch/me/run-7/best", "/c/scratch/me/run-7/best"),
        (".", "/c"),
        ("/c", "/c"),
        ("/c/fold0", "/c/fold0"),
    ],
)
@pytest.mark.parametrize("url", ["", "s3://bucket"])
def test_a_checkpoint_directory_keeps_its_path(tmp_path, monkeypatch, dirpath, expected, url):
    monkeypatch.chdir(tmp_path)
    given = dirpath.format(here=tmp_path)
    if url and given.startswith("/c"):
        expected = f"/c{given}"  # it is of this host, and the job's is not
    assert CheckpointRoutes(f"{url}/c", [given]).place(given) == url + expected


@pytest.mark.parametrize("trainers", [1, 7])
def test_only_equal_checkpoint_directories_become_one(tmp_path, monkeypatch, trainers):
    monkeypatch.chdir(tmp_path)
    given = ["data/x", "/data/x", "data/x", f"{tmp_path}/data/x", "/c/y", "y", "."]
    routes = [CheckpointRoutes("/c", given if trainers == 1 else [path]) for path in given]
    places = ["/c/data/x", "/c/data/x-2", "/c/data/x", "/c/data/x", "/c/y", "/c/y-2", "/c"]
    assert [each.place(path) for each, path in zip(routes, given)] == places


@pytest.mark.parametrize("make", [described, made])
@pytest.mark.parametrize("explicit", [None, {"trainer": {"logger": {"save_dir": "s3://b/runs/"}}}])
def test_tensorboard_files_for_s3_are_written_locally_and_uploaded(make, explicit, monkeypatch):
    logger = make("TensorBoardLogger", save_dir="s3://b/runs/" if make is described else "memory://b/runs/")
    setting, version = route(logger, explicit=explicit).values()
    assert (setting.value, setting.upload) == ("/ml/out/tensorboard/b/runs", setting.old)
    assert Routing((setting,)).uploads == {setting.value: setting.old}
    assert (logger.init_args if make is described else logger).version == NAME
    at = "trainer.logger.init_args" if make is described else "trainer.logger"
    assert str(version) == f"{at}.version = {NAME} ← the job's name, JOB_NAME"


def test_the_password_of_a_url_is_not_shown():
    setting, _ = route(made("TensorBoardLogger", save_dir="memory://me:hunter2pw@b/runs@2")).values()
    assert setting.value == "/ml/out/tensorboard/b/runs@2"
    assert "hunter2pw" not in str(setting)
    assert setting.upload == "memory://me:hunter2pw@b/runs@2"


def test_a_remote_output_directory_and_one_that_was_chosen_beside_it():
    entries = [described("TensorBoardLogger"), described("CSVLogger"), described("TensorBoardLogger", save_dir="/ml/a")]
    routed = route(entries, output_dir="s3://b/out")
    values = [(each.value, each.upload) for key, each in routed.items() if key.endswith("save_dir")]
    assert values == [("/ml/out/tensorboard/b/out", "s3://b/out"), ("s3://b/out", None)]


def test_loggers_of_one_directory_have_versions_of_their_own():
    more = [{}, {}, {"name": "other"}, {"name": "lightning_logs"}, {"version": 3}]
    entries = [described("TensorBoardLogger", save_dir="s3://b/x", **each) for each in more]
    routed = route(entries)
    found = [routed.get(f"trainer.logger[{index}].init_args.version") for index in range(5)]
    assert [each and each.value for each in found] == [NAME, f"{NAME}-2", NAME, f"{NAME}-3", None]


def test_the_jobs_tensorboard_directory():
    entries = [described("TensorBoardLogger"), described("CSVLogger")]
    first, second = route(entries, job=BOARD).values()
    assert str(first) == "trainer.logger[0].init_args.save_dir = /ml/output/tensorboard ← tensorboard.json"
    assert (first.upload, second.value) == (None, "/ml/out")
    remote = route(described("TensorBoardLogger", save_dir="s3://b/x"), job=BOARD)
    assert remote["trainer.logger.init_args.save_dir"].upload == "s3://b/x"


def complete(logger=None, job=JOB, explicit=None, **options):
    """The loggers of a trainer, and the lines of the table about them."""
    arguments = {"logger": logger}
    context = context_of(job, given_of(**(explicit or {})), SageMakerOptions(**options))
    lines = list(map(str, complete_loggers(arguments, context)))
    return as_list(arguments["logger"]), lines


@pytest.mark.parametrize("kind", [tuple, UserList])
def test_several_loggers_in_no_list_as_hydra_gives_them(kind):
    given = kind([made("CSVLogger", save_dir="logs"), Remote()])
    loggers, lines = complete(given)
    assert loggers == list(given)
    assert [type(each).__name__ for each in loggers] == ["CSVLogger", "Remote"]
    assert loggers[0].save_dir == "/ml/out"
    assert lines[0].startswith("trainer.logger[0].save_dir = /ml/out")


@pytest.mark.parametrize("given", [None, True])
@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("chosen", [None, "/fsx/out", "out"])
def test_the_default_logger(monkeypatch, given, is_installed, chosen):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_installed else None)
    (logger,), lines = complete(given, output_dir=chosen)
    assert type(logger).__name__ == ("TensorBoardLogger" if is_installed else "CSVLogger")
    place, source = (chosen, "sagemaker.output_dir") if chosen else ("/ml/out", "SM_OUTPUT_DATA_DIR")
    assert logger.save_dir == place
    assert lines == [f"trainer.logger.save_dir = {place} ← {source}"]


def arguments_of(logger):
    return {name: getattr(logger, f"_{name}") for name in ("tracking_uri", "experiment_name", "run_name")}


@pytest.mark.parametrize("given", [None, made("CSVLogger", save_dir="/ml/out"), [made("CSVLogger", save_dir="/ml/o")]])
def test_mlflow_is_added_beside_the_other_loggers(given):
    (first, added), lines = complete(given, mlflow_arn=ARN)
    assert arguments_of(added) == {"tracking_uri": ARN, "experiment_name": "cifar", "run_name": NAME}
    assert lines[-4:] == [
        f"trainer.logger = {type(first).__name__}, MLFlowLogger ← sagemaker.mlflow_arn",
        f"trainer.logger[1].tracking_uri = {ARN} ← sagemaker.mlflow_arn",
        "trainer.logger[1].experiment_name = cifar ← JOB_NAME without its time",
        f"trainer.logger[1].run_name = {NAME} ← JOB_NAME",
    ]


@pytest.mark.parametrize("words", [["--trainer.logger=CSVLogger"], ["--trainer.logger+=CSVLogger"]])
def test_the_portable_config_keeps_the_loggers_beside_which_mlflow_is_added(container, words):
    cli = container.hyperparameters({"sagemaker.mlflow_arn": URI}).cli(*words)
    (export,) = exports_of(cli.trainer)
    (logger,) = as_list(yaml.safe_load(export.portable_config)["trainer"]["logger"])
    assert logger["class_path"].endswith("CSVLogger")
    assert "save_dir" not in logger["init_args"]


@pytest.mark.parametrize("given", [False, [], (), UserList()])
def test_mlflow_is_not_added_where_there_are_to_be_no_loggers(given):
    with log_lines() as logged:
        assert complete(given) == complete(given, mlflow_arn=URI) == (as_list(given), [])
    assert logged[0].startswith("nothing is logged to MLflow: the trainer is to have no loggers.")


@pytest.mark.parametrize("own", [None, "mlruns", "file:./mlruns", "sqlite:///a.db", URI])
def test_the_projects_mlflow_logger_is_sent_to_the_server_but_from_one_of_its_own(own):
    (logger,), lines = complete(MLFlowLogger(tracking_uri=own), mlflow_arn=ARN)
    found = {"tracking_uri": URI if own == URI else ARN, "experiment_name": "cifar", "run_name": NAME}
    assert arguments_of(logger) == found
    keys = {f"trainer.logger.{name}" for name in found if name != "tracking_uri" or own != URI}
    assert {line.partition(" = ")[0] for line in lines} == keys


def test_a_described_mlflow_logger_has_a_directory_only_where_it_writes_there():
    # It is made with the server: MLflow may refuse the directory that is its default.
    found = route(described("MLFlowLogger", run_name="r"), mlflow_arn=URI)
    assert {key.rpartition(".")[2]: each.value for key, each in found.items()} == {"tracking_uri": URI}
    assert [each.value for each in route(described("MLFlowLogger", run_name="r")).values()] == ["/ml/out"]
    assert route(described("MLFlowLogger", run_name="r", tracking_uri=URI)) == {}


@pytest.mark.parametrize(
    ("uri", "missing", "message"),
    [
        (ARN, "sagemaker_mlflow", "needs sagemaker-mlflow. HINT: Add lightning-sm.mlflow. to the requirements.txt"),
        (URI, "mlflow", "needs mlflow. HINT: Add lightning-sm.mlflow. to the requirements.txt"),
        (ARN.replace("tracking", "trackin"), "", "is no ARN of a SageMaker managed MLflow. HINT: It has the form arn"),
        ("arn:aws:s3:::bucket", "", "is no ARN"),
    ],
)
@pytest.mark.parametrize("given", [None, MLFlowLogger()])
def test_a_server_that_cannot_be_used(monkeypatch, uri, missing, message, given):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(LoggerError, match=message):
        complete(given, mlflow_arn=uri)
