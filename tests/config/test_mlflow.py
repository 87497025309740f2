import importlib.util

import pytest

from lightning_sm._config.mlflow import mlflow_notes, route_mlflow
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.outputs import route_outputs
from lightning_sm._config.routed import Routing
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import LoggerError
from tests.config.given import context_of, settings_of

NAME = "cifar-2026-01-31-12-30-59-123"
JOB = TrainingJob(
    in_container=True, name=NAME, base_dir="/ml", output_data_dir="/ml/out", sources={"name": "TRAINING_JOB_NAME"}
)
ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/team"
URI = "https://mlflow.example"


class MLFlowLogger:
    def __init__(self, experiment_name="lightning_logs", run_name=None, tracking_uri=None, save_dir="./mlruns"):
        pass


class OwnMLFlowLogger(MLFlowLogger):
    def __init__(self, tracking_uri, team="a"):
        pass


class CSVLogger:
    def __init__(self, save_dir):
        pass


CLASSES = {cls.__name__: cls for cls in (MLFlowLogger, OwnMLFlowLogger, CSVLogger)}


@pytest.fixture(autouse=True)
def is_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def context(tmp_path, config, words=(), job=JOB, **options):
    (tmp_path / "a.yaml").write_text(f"trainer: {{{config}}}")
    settings = settings_of([str(tmp_path / "a.yaml")], typed=list(words))
    return context_of(job, settings, SageMakerOptions(**options), None, CLASSES.get)


def route(tmp_path, config="", words=(), job=JOB, **options):
    """The loggers as the parser gets them, and the lines of the table about them."""
    run = context(tmp_path, config, words, job, **options)
    routing = Routing(tuple(route_mlflow(run, list(route_outputs(run)))))
    lines = [str(setting) for setting in routing.settings if setting.key.startswith("trainer.logger")]
    return routing.as_config()["trainer"].get("logger"), lines


def test_one_is_added_beside_the_default_logger(tmp_path):
    loggers, lines = route(tmp_path, mlflow_arn=ARN)
    default, added = loggers
    assert default["init_args"] == {"save_dir": "/ml/out"}
    assert added == {
        "class_path": "pytorch_lightning.loggers.MLFlowLogger",
        "init_args": {"tracking_uri": ARN, "experiment_name": "cifar", "run_name": NAME},
    }
    assert lines[1:] == [
        f"trainer.logger = {default['class_path'].split('.')[-1]}, MLFlowLogger ← sagemaker.mlflow_arn",
        f"trainer.logger[1].init_args.tracking_uri = {ARN} ← sagemaker.mlflow_arn",
        "trainer.logger[1].init_args.experiment_name = cifar ← TRAINING_JOB_NAME without its time",
        f"trainer.logger[1].init_args.run_name = {NAME} ← TRAINING_JOB_NAME",
    ]


@pytest.mark.parametrize("given", ["CSVLogger", "{class_path: CSVLogger}", "[CSVLogger]"])
def test_one_is_added_beside_the_projects_loggers(tmp_path, given):
    loggers, _ = route(tmp_path, f"logger: {given}", mlflow_arn=URI)
    assert [each["class_path"] for each in loggers] == ["CSVLogger", "pytorch_lightning.loggers.MLFlowLogger"]
    assert loggers[0]["init_args"] == {"save_dir": "/ml/out"}


@pytest.mark.parametrize("given", ["logger: false", "logger: []", "barebones: true"])
def test_none_is_added_where_there_are_to_be_no_loggers(tmp_path, given):
    assert route(tmp_path, given, mlflow_arn=URI) == (None, [])
    reason = given.replace("logger:", "trainer.logger is").replace("barebones:", "trainer.barebones is")
    assert mlflow_notes(context(tmp_path, given, mlflow_arn=URI)) == (f"nothing is logged to MLflow: {reason}",)
    assert mlflow_notes(context(tmp_path, given)) == ()


def test_none_is_added_for_the_variable_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    loggers, lines = route(tmp_path)
    assert loggers["init_args"] == {"save_dir": "/ml/out"}
    assert len(lines) == 1


@pytest.mark.parametrize("local", ["null", "mlruns", "'file:./mlruns'", "'sqlite:///a.db'"])
def test_the_projects_logger_is_sent_to_the_server(tmp_path, local):
    given = (
        f"logger: {{class_path: MLFlowLogger, init_args: {{tracking_uri: {local}, experiment_name: lightning_logs}}}}"
    )
    logger, lines = route(tmp_path, given, mlflow_arn=ARN)
    assert logger["init_args"] == {"tracking_uri": ARN, "experiment_name": "cifar", "run_name": NAME}
    assert len(lines) == 3  # no directory, which it would not use


def test_what_the_project_chose_stays(tmp_path):
    given = (
        "logger: {class_path: MLFlowLogger, init_args: {tracking_uri: 'http://own', experiment_name: e, run_name: r}}"
    )
    assert route(tmp_path, given, mlflow_arn=ARN)[1] == []


def test_what_was_typed_stays(tmp_path):
    words = ["--trainer.logger=MLFlowLogger", "--trainer.logger.tracking_uri=file:/mine"]
    words += ["--trainer.logger.experiment_name=lightning_logs"]
    logger, _ = route(tmp_path, "", words, mlflow_arn=ARN)
    assert logger["init_args"]["tracking_uri"] == "file:/mine"
    assert logger["init_args"]["experiment_name"] == "lightning_logs"
    assert logger["init_args"]["run_name"] == NAME


def test_variables_of_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    logger, lines = route(tmp_path, "logger: [CSVLogger, MLFlowLogger]")
    assert logger[1]["init_args"] == {"tracking_uri": URI, "experiment_name": "mine", "run_name": NAME}
    assert f"trainer.logger[1].init_args.tracking_uri = {URI} ← MLFLOW_TRACKING_URI" in lines
    assert route(tmp_path, "logger: MLFlowLogger", mlflow_arn=ARN)[0]["init_args"]["tracking_uri"] == ARN


def test_a_job_without_server_keeps_its_experiment(tmp_path):
    logger, _ = route(tmp_path, "logger: MLFlowLogger")
    assert logger["init_args"] == {"save_dir": "/ml/out", "run_name": NAME}


def test_only_arguments_that_a_derived_logger_takes(tmp_path):
    logger, _ = route(tmp_path, "logger: {class_path: OwnMLFlowLogger, init_args: {team: b}}", mlflow_arn=ARN)
    assert logger["init_args"] == {"tracking_uri": ARN, "team": "b"}


def test_a_job_without_name(tmp_path):
    logger, _ = route(
        tmp_path, "logger: MLFlowLogger", job=TrainingJob(in_container=True, output_data_dir="/o"), mlflow_arn=URI
    )
    assert logger["init_args"] == {"tracking_uri": URI}


@pytest.mark.parametrize(
    ("uri", "missing", "message"),
    [
        (ARN, "sagemaker_mlflow", "needs sagemaker-mlflow. HINT: Add lightning-sm.mlflow. to the requirements.txt"),
        (URI, "mlflow", "needs mlflow. HINT: Add lightning-sm.mlflow. to the requirements.txt"),
        (
            ARN.replace("tracking", "trackin"),
            "",
            "is no ARN of a SageMaker managed MLflow. HINT: It has the form arn:aws",
        ),
        (ARN.replace("123456789012", "12"), "", "is no ARN"),
        ("arn:aws:s3:::bucket", "", "is no ARN"),
    ],
)
@pytest.mark.parametrize("given", ["", "logger: MLFlowLogger"])
def test_a_server_that_cannot_be_used(tmp_path, monkeypatch, uri, missing, message, given):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(LoggerError, match=message):
        route(tmp_path, given, mlflow_arn=uri)


def test_the_saved_config_is_the_projects_again(tmp_path):
    run = context(tmp_path, "logger: {class_path: CSVLogger, init_args: {save_dir: logs}}", mlflow_arn=URI)
    routing = Routing(tuple(route_mlflow(run, list(route_outputs(run)))))
    undone = routing.undone(routing.as_config(), run.settings)
    assert undone["trainer"]["logger"] == {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}
