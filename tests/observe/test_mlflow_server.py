"""Lightning's ``MLFlowLogger`` in a job, against a real MLflow server."""

import contextlib
import os
import random
import signal
import sys
import time
import uuid

import pytest

pytest.importorskip("mlflow", reason="an MLflow server needs the package mlflow")
import pytorch_lightning as pl
from mlflow.tracking import MlflowClient

from lightning_sm import trainer_settings
from lightning_sm._observe import mlflow as mlflow_logger
from lightning_sm._observe import names
from lightning_sm._observe.mlflow import Sender
from lightning_sm.errors import LoggerError
from tests.helpers.processes import local_rendezvous
from tests.helpers.tiny import loader, tiny_model, weights

pytestmark = pytest.mark.full

_QUIET = dict(accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1)
_ARNS = {
    "mlflow-tracking-server": ("sagemaker-mlflow", "x-mlflow-sm-tracking-server-arn", "sagemaker-mlflow:*"),
    "mlflow-app": ("sagemaker", "x-sm-mlflow-app-arn", "sagemaker:CallMlflowAppApi"),
}


class Runs:
    def __init__(self, client, experiment):
        self.client, self.experiment = client, experiment

    def __call__(self, experiment=None):
        found = self.client.get_experiment_by_name(experiment or self.experiment)
        return [] if found is None else self.client.search_runs([found.experiment_id])

    def history(self, run, key):
        return [(each.step, each.value) for each in self.client.get_metric_history(run.info.run_id, key)]


@pytest.fixture(autouse=True)
def job_name(container, monkeypatch):
    """A job of this test only."""
    name = f"{uuid.uuid4().hex[:8]}-2026-01-31-12-30-59-123"
    monkeypatch.setenv("TRAINING_JOB_NAME", name)
    # MLflow and Lightning leave the first of these behind.
    for variable in ("MLFLOW_TRACKING_URI", "GIT_PYTHON_REFRESH"):
        monkeypatch.setenv(variable, "quiet")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    # A job sets them for its whole process.
    for limit in ("TIMEOUT", "MAX_RETRIES", "BACKOFF_JITTER"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{limit}", "1")
        monkeypatch.delenv(f"MLFLOW_HTTP_REQUEST_{limit}")
    return name


@pytest.fixture
def runs(mlflow_server, job_name):
    """The runs of this test's experiment."""
    return Runs(MlflowClient(mlflow_server), job_name[:8])


def restart():
    """Count loggers as a new process does."""
    names._given.clear()


def fit(uri=None, model=None, epochs=1, ckpt=False, **more):
    option = {} if uri is None else {"sagemaker": {"mlflow_arn": uri, "resume": "never"}}
    trainer = pl.Trainer(
        **trainer_settings(
            trainer_class=pl.Trainer, max_epochs=epochs, enable_checkpointing=ckpt, **{**_QUIET, **option, **more}
        )
    )
    trainer.fit(model or tiny_model(pl), loader(), loader())
    return trainer


def test_the_variable_of_mlflow(container, proxy, runs, job_name):
    variables = {"MLFLOW_TRACKING_URI": proxy.url, "MLFLOW_EXPERIMENT_NAME": f"own {job_name}"}
    result = container.run("train.py", "fit", "--config=config.yaml", "--trainer.logger=MLFlowLogger", **variables)
    assert result.returncode == 0, result.stderr[-3000:]
    (run,) = runs(f"own {job_name}")
    assert (run.info.run_name, run.info.status) == (job_name, "FINISHED")
    # Lightning saves the config to the directory of the first logger, and this one has none.
    assert list(container.base.glob("output/data/**/config.yaml"))


class Killed(pl.Callback):
    """Ends the process as the loss of its host does, once what was logged before has arrived."""

    def __init__(self, has_arrived):
        self.has_arrived = has_arrived

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 12:
            deadline = time.monotonic() + 30
            while not self.has_arrived() and time.monotonic() < deadline:
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_job_goes_on_in_its_run(proxy, runs, tmp_path):
    def attempt(*callbacks):
        pid = os.fork()
        if pid == 0:
            try:
                fit(proxy.url, epochs=3, ckpt=True, callbacks=list(callbacks), sagemaker={"mlflow_arn": proxy.url})
            finally:
                os._exit(sys.exc_info()[0] is not None)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    killed = Killed(lambda: any(runs.history(run, "train_loss") for run in runs()))
    assert attempt(killed) == -signal.SIGKILL
    (run,) = runs()
    assert run.info.status == "RUNNING"
    assert attempt() == 0
    (again,) = runs()
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    steps = [step for step, _ in runs.history(run, "train_loss")]
    assert steps[0] == 7
    assert set(steps) == {7, 15, 23}


def test_folds_of_one_job_are_runs_of_their_own(proxy, runs, job_name):
    for _ in range(2):
        restart()
        for _ in range(3):
            fit(proxy.url)
    found = runs()
    assert sorted(run.data.tags["sagemaker.logger"] for run in found) == [job_name, f"{job_name}-2", f"{job_name}-3"]


def test_the_status_while_a_continued_run_trains_and_when_it_fails(proxy, runs):
    seen = []

    class Look(pl.Callback):
        error = None

        def on_train_start(self, *_):
            seen.append(runs()[0].info.status)
            if self.error is not None:
                raise self.error

    for error, status in (
        (None, "FINISHED"),
        (ValueError("a bug"), "FAILED"),
        (SystemExit(143), "KILLED"),
        (SystemExit(1), "FAILED"),
        (SystemExit(0), "FINISHED"),
    ):
        restart()
        look = Look()
        look.error = error
        with contextlib.suppress(SystemExit, ValueError):
            fit(proxy.url, callbacks=[look])
        assert [run.info.status for run in runs()] == [status], error
    assert set(seen) == {"RUNNING"}


def test_a_server_that_goes_away_and_comes_back_also_where_checkpoints_are_logged(
    proxy, runs, monkeypatch, tmp_path, lines
):
    from pytorch_lightning.loggers import MLFlowLogger

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Sender.__init__, "__kwdefaults__", {**Sender.__init__.__kwdefaults__, "pause": 0.05})

    class Away(pl.Callback):
        def on_train_epoch_start(self, trainer, *_):
            proxy.status = -1 if 1 <= trainer.current_epoch < 3 else None
            time.sleep(0.06)

    saves = pl.callbacks.ModelCheckpoint(str(tmp_path), save_top_k=-1)
    logger = MLFlowLogger(tracking_uri=proxy.url, log_model="all")
    fit(proxy.url, epochs=5, ckpt=True, logger=logger, callbacks=[Away(), saves])
    (run,) = runs()
    assert run.info.status == "FINISHED"
    assert [step for step, _ in runs.history(run, "train_loss")] == [7, 15, 23, 31, 39]
    assert len(runs.client.list_artifacts(run.info.run_id)) >= 2
    assert sum("fails, training goes on" in line for line in lines) == 1
    assert sum("answers again; what was kept is logged now" in line for line in lines) == 1
    assert not any("were not logged" in line for line in lines)


def test_the_run_that_a_variable_names(proxy, runs, monkeypatch, job_name):
    run_id = runs.client.create_run(runs.client.create_experiment(job_name[:8])).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    fit(proxy.url)
    fit(proxy.url)  # of several loggers the first
    found = {run.info.run_id: run for run in runs()}
    assert len(found) == 2
    assert "train_loss" in found[run_id].data.metrics


def test_a_server_that_hangs_at_the_end(proxy, runs, monkeypatch, lines):
    monkeypatch.setattr(Sender.__init__, "__kwdefaults__", {**Sender.__init__.__kwdefaults__, "patience": 1.0})
    monkeypatch.setitem(mlflow_logger._LIMITS_AT_END, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")

    class Hang(pl.Callback):
        def on_train_epoch_end(self, *_):
            proxy.seconds = 8.0

    started = time.monotonic()
    fit(proxy.url, callbacks=[Hang()])
    assert time.monotonic() - started < 7
    assert sum("values were not logged to MLflow" in line for line in lines) == 1


def test_a_password_in_the_address_is_shown_nowhere(container, proxy, runs, monkeypatch, lines):
    uri = proxy.url.replace("://", "://me:hunter2pw@")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    class Gone(pl.Callback):
        def on_train_start(self, *_):
            proxy.status = -1

    fit(uri, callbacks=[Gone()])
    proxy.status = None
    assert any("fails, training goes on" in line for line in lines)
    assert "***@127.0.0.1" in "\n".join(lines)
    assert "hunter2pw" not in "\n".join(lines)
    container.hyperparameters({"sagemaker.mlflow_arn": uri})
    proxy.status = -1
    result = container.run("train.py", "fit", "--config", "config.yaml")
    assert result.returncode == 1
    assert "HINT: Check the address" in container.failure
    assert "hunter2pw" not in result.stderr + result.stdout + container.failure


def test_a_ready_made_logger(proxy, runs, job_name, lines):
    from pytorch_lightning.loggers import CSVLogger, MLFlowLogger

    fit(proxy.url, logger=[CSVLogger("logs"), MLFlowLogger(tracking_uri="sqlite:///own.db", prefix="p")])
    (run,) = runs()
    assert run.info.run_name == job_name
    assert "p-train_loss" in run.data.metrics
    assert f"  trainer.logger[1].run_name = {job_name} ← TRAINING_JOB_NAME" in lines[0].splitlines()


def test_what_a_script_chose_stays(proxy, runs, job_name):
    from pytorch_lightning.loggers import MLFlowLogger

    run_id = runs.client.create_run(runs.client.create_experiment(f"own {job_name}")).info.run_id
    fit(None, logger=MLFlowLogger(tracking_uri=proxy.url, run_id=run_id))
    fit(
        "http://127.0.0.1:1",
        logger=MLFlowLogger(tracking_uri=proxy.url, experiment_name=f"own {job_name}", run_name="r"),
    )
    found = {run.info.run_name: run for run in runs(f"own {job_name}")}
    assert found.pop("r").info.status == "FINISHED"
    (first,) = found.values()
    assert first.info.run_id == run_id
    assert "train_loss" in first.data.metrics


def test_a_deleted_experiment(proxy, runs):
    fit(proxy.url)
    restart()
    runs.client.delete_experiment(runs()[0].info.experiment_id)
    with pytest.raises(LoggerError, match="HINT: Restore the deleted experiment, or name another one"):
        fit(proxy.url)


def test_an_experiment_that_another_job_creates_at_the_same_time(proxy, runs, monkeypatch, job_name):
    runs.client.create_experiment(job_name[:8])
    calls, look_up = [], MlflowClient.get_experiment_by_name

    def not_yet(self, name):
        calls.append(name)
        return None if len(calls) == 1 else look_up(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", not_yet)
    fit(proxy.url)
    assert len(calls) == 2
    assert len(runs()) == 1


@pytest.fixture
def managed(proxy, monkeypatch):
    """Managed MLflow, played by the server: the ARN of a kind."""
    pytest.importorskip("sagemaker_mlflow", reason="ARNs need the plugin sagemaker-mlflow")
    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return "arn:aws:sagemaker:eu-west-1:123456789012:{}/team".format


@pytest.mark.parametrize("kind", sorted(_ARNS))
def test_managed_mlflow_by_its_arn_and_the_action_where_access_is_denied(managed, proxy, runs, kind):
    arn = managed(kind)
    fit(arn)
    (run,) = runs()
    assert run.info.status == "FINISHED"
    service, header, action = _ARNS[kind]
    for _, path, headers in proxy.requests:
        headers = {name.lower(): value for name, value in headers.items()}
        assert headers[header] == arn, path
        assert f"/eu-west-1/{service}/aws4_request" in headers["authorization"]
    restart()
    proxy.status, proxy.text = 403, '{"Message": "User: arn:aws:sts::1:assumed-role/r is not authorized to perform"}'
    with pytest.raises(LoggerError) as caught:
        fit(arn)
    assert f"HINT: Allow the action {action} on {arn} in the policy" in str(caught.value)


def test_no_credentials(managed, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(LoggerError, match="HINT: The job's execution role has to be reachable for boto3"):
        fit(managed("mlflow-app"))


def test_training_is_the_same_with_and_without(proxy):
    trained = []
    for uri in (None, proxy.url):
        pl.seed_everything(3)
        model = tiny_model(pl)
        fit(uri, model=model, epochs=2, **({"logger": False} if uri is None else {}))
        trained.append((weights(model), random.random()))
    assert trained[0] == trained[1]


@pytest.mark.parametrize("words", [(), ("--trainer.logger=MLFlowLogger", "--trainer.logger.log_model=false")])
def test_two_processes_are_one_run(container, proxy, runs, job_name, words):
    container.hyperparameters({"sagemaker.mlflow_arn": proxy.url})
    launcher = ("-m", "torch.distributed.run", *local_rendezvous(), "--nproc_per_node=2", "train.py", "fit")
    result = container.run(*launcher, "--config=config.yaml", "--trainer.log_every_n_steps=1", *words)
    assert result.returncode == 0, result.stderr
    assert f"tracking_uri = {proxy.url} ← sagemaker.mlflow_arn" in result.stderr
    assert "list index out of range" not in result.stderr
    (run,) = runs()
    assert (run.info.run_name, run.info.status) == (job_name, "FINISHED")
    assert run.data.tags["sagemaker.job_name"] == job_name
    assert {"loss", "val_loss", "epoch"} <= set(run.data.metrics)
    assert sum(path.endswith("runs/create") for _, path, _ in proxy.requests) == 1
