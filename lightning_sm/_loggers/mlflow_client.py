"""The ``MlflowClient`` of a job's ``MLFlowLogger``: continues the job's run; failing requests end no training."""

import functools
import logging
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from lightning_sm._failure import redact_patterns
from lightning_sm._loggers.delivery import Delivery, DeliveryThread
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import SUCCESS, is_success
from lightning_sm.errors import LoggerError

__all__ = ["JOB_TAG", "LOGGER_TAG", "JobRun", "describe_failure", "make_client"]

#: Tags of a run by which a restarted job finds it.
JOB_TAG, LOGGER_TAG = "sagemaker.job_name", "sagemaker.logger"
# Seconds and repetitions of a request, where the user sets none: MLflow's own would block a step for minutes.
_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
# The end of a run, and artifacts, do not wait for a server that is known to fail.
_LIMITS_WHILE_FAILING = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
# urllib3 would draw the jitter from Python's global generator, on which a project's augmentations may depend.
_NO_JITTER = {"MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0"}
# Seconds that a program waits for its run: Lightning asks for it before it ends it, only to see that it exists.
_GET_RUN = 10.0
_PARAMETERS = {"Metric": "metrics", "Param": "params", "RunTag": "tags"}


@dataclass(frozen=True)
class JobRun:
    """What tells the run of a job's logger from every other run.

    Args:
        job_name: The name of the job, which a restart keeps.
        logger: The logger's run name, with a number where the job has several loggers of this name.
    """

    job_name: str
    logger: str

    @property
    def tags(self) -> Dict[str, str]:
        """The tags that the run gets when it is created."""
        return {JOB_TAG: self.job_name, LOGGER_TAG: self.logger}

    @property
    def filter(self) -> str:
        """The tags as MLflow's search takes them."""
        return " and ".join(f"tags.`{key}` = '{value}'" for key, value in self.tags.items())


def make_client(tracking_uri: str, job_run: Optional[JobRun] = None) -> Any:
    """Make an ``MlflowClient`` for a job.

    Args:
        tracking_uri: The server's URL or ARN.
        job_run: The run to continue or to create; ``None`` to create one as Lightning does.
    """
    if not tracking_uri.startswith("arn:"):
        # sagemaker-mlflow reads every tracking URI as an ARN, and MLflow warns of its IndexError at each request.
        logging.getLogger("mlflow.tracking.request_header.registry").addFilter(_is_no_index_error)
    # For good, because a thread sends requests at any time.
    for name, value in {**_LIMITS, **_NO_JITTER}.items():
        os.environ.setdefault(name, value)
    client = _client_class()(tracking_uri)
    client.use_for_job(tracking_uri, job_run)
    return client


def _is_no_index_error(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("list index out of range")


@functools.lru_cache(maxsize=None)
def _client_class() -> Any:
    from mlflow.tracking import MlflowClient

    return type("MlflowClient", (_JobClientMixin, MlflowClient), {"__module__": "mlflow.tracking.client"})


class _JobClientMixin:
    """Overrides what Lightning's ``MLFlowLogger`` calls. Errors are raised until there is a run, and never after."""

    def use_for_job(self, tracking_uri: str, job_run: Optional[JobRun]) -> None:
        self._server, self._job_run = tracking_uri, job_run
        self._own_run: Any = None
        self._batch_options: Mapping[str, Any] = {}
        self._delivery = Delivery(f"MLflow at {redact_patterns(tracking_uri)}", self._send)
        self._thread = DeliveryThread(self._delivery)

    @property
    def _parent(self) -> Any:
        """The methods of ``MlflowClient`` itself."""
        return super()

    def __reduce__(self) -> Any:
        return make_client, (self._server, self._job_run)

    def get_experiment_by_name(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._at_start():
            return self._parent.get_experiment_by_name(name, *args, **kwargs)

    def create_experiment(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._at_start():
            try:
                return self._parent.create_experiment(name, *args, **kwargs)
            except Exception:
                # Another job of the same tuning job may have created it a moment ago.
                found = self._parent.get_experiment_by_name(name)
                if found is None or found.lifecycle_stage == "deleted":
                    raise
                return found.experiment_id

    def create_run(self, experiment_id: str, *args: Any, **kwargs: Any) -> Any:
        if self._own_run is not None:
            return self._parent.create_run(experiment_id, *args, **kwargs)
        with self._at_start():
            if self._job_run is not None:
                self._own_run = self._continued_run(experiment_id, self._job_run)
            if self._own_run is None:
                if self._job_run is not None and not args:
                    kwargs["tags"] = {**self._job_run.tags, **(kwargs.get("tags") or {})}
                self._own_run = self._parent.create_run(experiment_id, *args, **kwargs)
            return self._own_run

    def _continued_run(self, experiment_id: str, job_run: JobRun) -> Any:
        found = self._parent.search_runs(
            [experiment_id], filter_string=job_run.filter, max_results=1, order_by=["attributes.start_time DESC"]
        )
        if not found:
            return None
        run_id = found[0].info.run_id
        with suppress(AttributeError):  # MLflow before 1.28
            self._parent.update_run(run_id, status="RUNNING")
        log.info("Logging goes on in the MLflow run %s, which this job began earlier.", run_id)
        return found[0]

    def get_run(self, run_id: str) -> Any:
        if self._own_run is None:
            with self._at_start():
                self._own_run = self._parent.get_run(run_id)
                return self._own_run
        if run_id != self._own_run.info.run_id:
            return self._parent.get_run(run_id)
        if self._delivery.is_failing:
            return self._own_run
        return self._thread.call(lambda: self._parent.get_run(run_id), _GET_RUN) or self._own_run

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Any] = (),
        params: Sequence[Any] = (),
        tags: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self._batch_options = options
        self._thread.add(run_id, [*metrics, *params, *tags])

    def log_metric(
        self,
        run_id: str,
        key: str,
        value: Any,
        timestamp: Optional[int] = None,
        step: Optional[int] = None,
        **more: Any,
    ) -> None:
        """Lightning before 1.9 calls this for each metric, and projects call it."""
        from mlflow.entities import Metric

        if more:
            self._delivery.attempt(lambda: self._parent.log_metric(run_id, key, value, timestamp, step, **more))
        else:
            now = int(time.time() * 1000)
            self._thread.add(run_id, [Metric(key, float(value), timestamp or now, step or 0)])

    def log_param(self, run_id: str, key: str, value: Any, *_: Any, **__: Any) -> Any:
        """Lightning before 1.9 calls this for each parameter, and projects call it."""
        from mlflow.entities import Param

        self._thread.add(run_id, [Param(key, str(value))])
        return value

    def _send(self, run_id: str, values: Sequence[Any]) -> None:
        parameter = _PARAMETERS[type(values[0]).__name__]
        with self._limits():
            self._parent.log_batch(run_id, **{parameter: values}, **self._batch_options)

    def log_artifact(self, *args: Any, **kwargs: Any) -> Any:
        with self._limits():
            return self._delivery.attempt(lambda: self._parent.log_artifact(*args, **kwargs))

    def log_artifacts(self, *args: Any, **kwargs: Any) -> Any:
        with self._limits():
            return self._delivery.attempt(lambda: self._parent.log_artifacts(*args, **kwargs))

    def set_terminated(self, run_id: str, status: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        status = _status_at_exit(status)

        def end() -> None:
            with self._limits():
                self._parent.set_terminated(run_id, status, *args, **kwargs)

        self._thread.finish(end)

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        """Raise what keeps the run from being created as an error that says what to do."""
        if self._own_run is not None:
            yield
            return
        try:
            yield
        except LoggerError:
            raise
        except Exception as error:
            raise describe_failure(self._server, error) from error

    @contextmanager
    def _limits(self) -> Iterator[None]:
        """Limit the requests that are sent within while the server fails, except as the user limits them himself."""
        limits = _LIMITS_WHILE_FAILING if self._delivery.is_failing else {}
        changed = [name for name in limits if os.environ.get(name) == _LIMITS[name]]
        os.environ.update({name: limits[name] for name in changed})
        try:
            yield
        finally:
            os.environ.update({name: _LIMITS[name] for name in changed})


def _status_at_exit(status: Optional[str]) -> Optional[str]:
    """Tell a training that was stopped from one that failed; Lightning reports both as failed."""
    error = sys.exc_info()[1]
    if status != "FAILED" or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return status
    if isinstance(error, SystemExit):
        if error.code in (None, SUCCESS):
            return "FINISHED"
        if not is_success(error.code):
            return status
    return "KILLED"


def describe_failure(server: str, error: Exception) -> LoggerError:
    """Return the error to raise where no run can be created.

    Args:
        server: The tracking URI.
        error: What the client raised.
    """
    text = redact_patterns(" ".join(f"{type(error).__name__}: {error}".split()))
    is_managed = server.startswith("arn:")
    if is_managed and re.search("credential|Token", text, re.IGNORECASE) and "denied" not in text.lower():
        hint = "The job's execution role has to be reachable for boto3 (container credentials, or AWS_ACCESS_KEY_ID)."
    elif re.search(r"PERMISSION_DENIED|AccessDenied|UNAUTHENTICATED|not authorized|\b40[13]\b", text):
        hint = "Give the job's execution role access to the MLflow server."
        if is_managed:
            action = "sagemaker:CallMlflowAppApi" if ":mlflow-app/" in server else "sagemaker-mlflow:*"
            hint = f"Allow the action {action} on {server} in the policy of the job's execution role."
    elif "RESOURCE_ALREADY_EXISTS" in text or "deleted" in text:
        hint = "Restore the deleted experiment, or name another one (experiment_name, or MLFLOW_EXPERIMENT_NAME)."
    else:
        hint = "Check the address, that the server runs, and that the job's VPC and security groups let it through."
    return LoggerError(f"No MLflow run can be created at {redact_patterns(server)}: {text[:500]}", hint=hint)
