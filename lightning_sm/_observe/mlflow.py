"""What a job sets on Lightning's ``MLFlowLogger``: server, experiment and run; and what a failing server costs.

Each of these loggers is made one of :class:`_JobLogger`, in place, which overrides methods of Lightning's logger.
"""

import atexit
import functools
import importlib.util
import logging
import os
import re
import sys
import threading
from collections import deque
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any, Deque, Dict, Iterator, Mapping, Optional, Sequence, Set, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm._lightning.observing import is_rank_zero
from lightning_sm._logging import log
from lightning_sm._observe.names import numbered
from lightning_sm._sagemaker.exit_codes import STOPPED, SUCCESS, is_success
from lightning_sm.errors import LoggerError

__all__ = [
    "check_server",
    "continue_run",
    "experiment_of",
    "is_local",
    "is_open",
    "settable",
]

# What Lightning calls an experiment that nobody named: 1.5 the latter.
_DEFAULT_EXPERIMENTS = (None, "", "lightning_logs", "default")
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:(mlflow-tracking-server|mlflow-app)/\S+")
# How the SDKs and tuning jobs make names unique: sagemaker/utils.py, name_from_base (v2), unique_name_from_base;
# a tuning job appends its number and a hash to each training job.
_SUFFIXES = (
    r"-[0-9]{3}-[0-9a-f]{8}",
    r"-[0-9]{4}(-[0-9]{2}){5}-[0-9]{3}",
    r"-[0-9]{13}-[0-9a-f]{4}",
    r"-[0-9]{14}",
    r"-[0-9]{10}",
    r"-[0-9]{6}-[0-9]{4}",
)
#: Tags of a run by which a restarted job finds it.
JOB_TAG, LOGGER_TAG = "sagemaker.job_name", "sagemaker.logger"
# Seconds and repetitions of a request, where the user sets none: with MLflow's own the end would wait for minutes.
# urllib3 would draw the jitter from Python's global generator, on which a project's augmentations may depend.
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}
_LIMITS_AT_END = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
# MLflow's own limits for one request: https://mlflow.org/docs/latest/rest-api.html#log-batch
_MAX_VALUES = {"metrics": 1000, "params": 100, "tags": 100}
# What a repetition of the request cannot change.
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")


def experiment_of(job_name: str) -> str:
    """Return the experiment of a job: its name without the part that makes it unique.

    >>> experiment_of("cifar10-2026-01-31-12-30-59-123"), experiment_of("tune-260131-1230-004-1a2b3c4d")
    ('cifar10', 'tune')
    """
    name = job_name
    for suffix in _SUFFIXES:
        name = re.sub(f"(?<=.){suffix}$", "", name)
    return name


def is_local(uri: Optional[str]) -> bool:
    """Whether a tracking URI is none, or one of this host's disk, which ends with the job.

    >>> is_local("./mlruns"), is_local("sqlite:///mlflow.db"), is_local("https://mlflow.example"), is_local("arn:aws:…")
    (True, True, False, False)
    """
    scheme, separator, _ = (uri or "").partition(":")
    return scheme in ("", "file", "sqlite") or not (separator or scheme.startswith(("databricks", "uc")))


def is_open(argument: str, value: Any) -> bool:
    """Whether a logger's argument is as Lightning sets it where nobody does."""
    if argument == "tracking_uri":
        return is_local(value)
    return value in (_DEFAULT_EXPERIMENTS if argument == "experiment_name" else (None, ""))


def check_server(uri: str) -> None:
    """Check what can be seen of a tracking URI before a request is sent.

    Raises:
        LoggerError: It is a malformed ARN, or a package is missing.
    """
    managed = uri.startswith("arn:")
    if managed and not _ARN.fullmatch(uri):
        raise LoggerError(
            f"{redact_patterns(uri)} is no ARN of a SageMaker managed MLflow.",
            hint="It has the form arn:aws:sagemaker:REGION:ACCOUNT:mlflow-tracking-server/NAME, or mlflow-app/NAME.",
        )
    needed = ("mlflow", "sagemaker_mlflow") if managed else ("mlflow",)
    missing = [name.replace("_", "-") for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise LoggerError(
            f"Logging to {redact_patterns(uri)} needs {' and '.join(missing)}.",
            hint="Add lightning-sm[mlflow] to the requirements.txt beside your script.",
        )


def settable(logger: Any) -> Dict[str, Any]:
    """What a ready-made ``MLFlowLogger`` has for each argument that can still be set, because it has begun no run."""
    if logger._run_id is not None or logger._experiment_id is not None:
        return {}
    return {
        "tracking_uri": logger._tracking_uri,
        "experiment_name": logger._experiment_name,
        "run_name": logger._run_name,
    }


def continue_run(logger: Any, job_name: Optional[str], directory: str) -> None:
    """Let an ``MLFlowLogger`` continue the run of this job, and let failing requests end no training.

    The run is that of the variable ``MLFLOW_RUN_ID``, which the user sets, or is found by its tags on the server, so
    that a job continues it that ended before its first checkpoint. Nothing is sent here: the run is looked for when
    Lightning begins to log, on global rank zero.

    Args:
        logger: The logger.
        job_name: The name of the job; ``None`` if it is unknown, so that each start creates a run.
        directory: The directory for files beside the logs, which such a logger has not if its server is remote.
    """
    if hasattr(logger, "_job_directory"):
        return
    if not logger._tracking_uri.startswith("arn:"):
        # sagemaker-mlflow reads every tracking URI as an ARN, and MLflow warns of its IndexError at each request.
        logging.getLogger("mlflow.tracking.request_header.registry").addFilter(_is_no_index_error)
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    logger._mlflow_client = MlflowClient(logger._tracking_uri)
    logger._job_directory, logger._job_tags = directory, {}
    logger._sender = Sender(logger._tracking_uri, logger._mlflow_client)
    if job_name is not None and logger._run_id is None:
        # A quotation mark would end the value in MLflow's search.
        name = re.sub(r"['\"`\\]", "_", logger._run_name or job_name)
        tag = numbered(name, logger._tracking_uri, logger._experiment_name)
        logger._job_tags = {JOB_TAG: job_name, LOGGER_TAG: tag}
        if tag == name:
            logger._run_id = os.environ.get("MLFLOW_RUN_ID") or None
    logger_class: Any = type(logger)
    logger.__class__ = _in_job(logger_class)


def _is_no_index_error(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("list index out of range")


class _JobLogger:
    """Overrides what is different in a job. Errors are raised until there is a run, and never after."""

    _logger: Any  # the methods of Lightning's logger
    _sender: "Sender"
    _job_directory: str
    _job_tags: Dict[str, str]
    _experiment_name: str
    _tracking_uri: str
    _run_id: Optional[str]
    _initialized: bool
    tags: Any

    @property
    def save_dir(self) -> str:
        """The directory where LightningCLI saves its config."""
        return str(self._logger.save_dir or self._job_directory)

    @property
    def experiment(self) -> Any:
        """MLflow's client, once there is a run."""
        if not self._initialized and is_rank_zero():
            try:
                self._begin_run(self._sender.client)
            except Exception as error:
                # The error itself has the address with its password.
                raise describe_failure(self._sender.uri, error) from None
        return self._logger.experiment

    def _begin_run(self, client: Any) -> None:
        import mlflow

        # As Lightning's logger does before its first request: sagemaker-mlflow signs requests for this address.
        mlflow.set_tracking_uri(self._tracking_uri)
        if self._run_id is None and self._job_tags:
            self._run_id = self._find_run(client)
        if self._run_id is not None:
            client.update_run(self._run_id, status="RUNNING")
        try:
            _ = self._logger.experiment
        except Exception as error:
            if "RESOURCE_ALREADY_EXISTS" not in str(error):
                raise
            # Another job of the same tuning job may have created the experiment a moment ago.
            _ = self._logger.experiment
        # What Lightning's logger, and a program, logs in batches.
        client.log_batch = self._sender.log_batch

    def _find_run(self, client: Any) -> Optional[str]:
        experiment = client.get_experiment_by_name(self._experiment_name)
        found: Sequence[Any] = ()
        if experiment is not None and experiment.lifecycle_stage != "deleted":
            wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in self._job_tags.items())
            order = ["attributes.start_time DESC"]
            found = client.search_runs([experiment.experiment_id], wanted, order_by=order, max_results=1)
        if not found:
            self.tags = {**(self.tags or {}), **self._job_tags}
            return None
        log.info("Logging goes on in the MLflow run %s, which this job began earlier.", found[0].info.run_id)
        return str(found[0].info.run_id)

    def after_save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Log a checkpoint, whose file may be gone a moment later: the program waits for it."""
        with self._sender.guarded():
            self._logger.after_save_checkpoint(*args, **kwargs)

    def finalize(self, status: str = "success") -> None:
        """Send what is left, and set the status of the run."""
        if self._initialized:
            with _variables(_LIMITS_AT_END):
                self._sender.finish()
                with self._sender.guarded():
                    self._logger.finalize(_status_at_exit(status))

    def __reduce__(self) -> Any:
        return _restore, (type(self).__mro__[1], vars(self))


@functools.lru_cache(maxsize=None)
def _in_job(cls: Any) -> Any:
    """Derive a job's logger from Lightning's ``MLFlowLogger``, or from a class that the project has derived from it."""
    own = {name: value for name, value in vars(_JobLogger).items() if callable(value) or isinstance(value, property)}
    body = {
        **own,
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "_logger": property(lambda self: super(made, self)),
    }
    # The class of an object can only be changed to one that has no other base.
    made: Any = type(cls.__name__, (cls,), body)
    return made


def _restore(cls: type, state: Dict[str, Any]) -> Any:
    made: Any = object.__new__(_in_job(cls))
    made.__dict__.update(state)
    return made


def _status_at_exit(status: str) -> str:
    """Tell a training that was stopped from one that failed; Lightning reports both as failed."""
    error = sys.exc_info()[1]
    if status != "failed" or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return status
    code = STOPPED if isinstance(error, KeyboardInterrupt) else error.code
    return "success" if code in (None, SUCCESS) else "KILLED" if is_success(code) else status


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are as :func:`continue_run` has set them; the user's stay."""
    changed = [name for name in values if os.environ.get(name) == _LIMITS[name]]
    os.environ.update({name: values[name] for name in changed})
    try:
        yield
    finally:
        os.environ.update({name: _LIMITS[name] for name in changed})


class Sender:
    """Sends what is logged to MLflow in a thread, in its order, and keeps what a failing server does not take.

    MLflow's own asynchronous logging (``synchronous=False``) loses what it cannot send after its retries, and its
    threads, which the interpreter waits for, keep a program from ending for minutes while a server is away. Nothing is
    raised here; one warning says that the server fails, and one at the end how many values were lost.

    Args:
        uri: The server.
        client: The ``MlflowClient``.
        pause: Seconds between two attempts to reach a server that failed.
        limit: The largest number of values that are kept.
        patience: Seconds that the end waits at most for what was logged before.
    """

    def __init__(
        self, uri: str, client: Any, *, pause: float = 30.0, limit: int = 10_000, patience: float = 30.0
    ) -> None:
        self.uri, self.client, self.name = uri, client, f"MLflow at {redact_patterns(uri)}"
        self._pause, self._limit, self._patience = pause, limit, patience
        self._lost = 0
        self._is_failing = False
        self._said: Set[str] = set()
        self._values: Deque[Tuple[str, str, Any]] = deque()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._is_due, self._is_ending = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        return type(self), (self.uri, type(self.client)(self.uri))

    def log_batch(
        self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = (), **_: Any
    ) -> None:
        """Send values soon, in the order of the calls."""
        with self._lock:
            for kind, values in (("metrics", metrics), ("params", params), ("tags", tags)):
                self._values.extend((run_id, kind, value) for value in values)
        self._is_due.set()
        if self._thread is None or not self._thread.is_alive():  # in a forked process, too
            self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)
            self._thread.start()
            atexit.register(self.finish)

    def finish(self) -> None:
        """Make a last attempt, wait for it, though not for ever, and say what was lost."""
        if self._thread is None or not self._thread.is_alive() or not self._patience:
            return
        self._is_ending.set()
        self._is_due.set()
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self._patience = 0.0  # the end of the process does not wait a second time
            self._lost += len(self._values)
        self._is_ending.clear()
        lost, self._lost = self._lost, 0
        if lost:
            log.warning("%d values were not logged to %s.", lost, self.name)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let what fails within be a warning."""
        try:
            yield
        except Exception as error:
            self._warn(error)

    def _run(self) -> None:
        while self._is_due.wait():
            self._is_due.clear()
            is_last = self._is_ending.is_set()
            try:
                while self._values:
                    self._send_first()
            except Exception as error:
                self._is_failing = True
                self._warn(error)
                self._is_ending.wait(self._pause)
                self._drop(len(self._values) - (0 if is_last else self._limit))
                self._is_due.set()
            if is_last:
                return

    def _send_first(self) -> None:
        """Send the values at the front that one request can hold: of one run and one kind."""
        with self._lock:
            run_id, kind, _ = self._values[0]
            same = takewhile(lambda each: each[:2] == (run_id, kind), self._values)
            batch = [value for _, _, value in islice(same, _MAX_VALUES[kind])]
        self._send(run_id, kind, batch)
        self._drop(len(batch), is_lost=False)
        if self._is_failing:
            self._is_failing = False
            log.info("%s answers again; what was kept is logged now.", self.name)

    def _send(self, run_id: str, kind: str, values: Sequence[Any]) -> None:
        """Send values; of those that are refused the half that is not, and so on."""
        try:
            type(self.client).log_batch(self.client, run_id, **{kind: values})
        except Exception as error:
            if getattr(error, "error_code", None) not in _REFUSALS:
                raise
            if len(values) == 1:
                self._lost += 1
                self._say(
                    "refuses",
                    f"{kind[:-1]} {values[0].key!r}, which is left out: {_text(error)} HINT: Rename or shorten it; a "
                    "parameter keeps the value of the run's first start.",
                )
                return
            middle = len(values) // 2
            self._send(run_id, kind, values[:middle])
            self._send(run_id, kind, values[middle:])

    def _drop(self, number: int, is_lost: bool = True) -> None:
        for _ in range(number):
            self._values.popleft()
            self._lost += is_lost

    def _warn(self, error: Exception) -> None:
        self._say(
            "fails,",
            f"training goes on. Metrics are kept, and sent again every {self._pause:g} s: {_text(error)} HINT: Nothing "
            "is to be done if it is away for a while. Else check that it runs, and the access of the job's role.",
        )

    def _say(self, what: str, text: str) -> None:
        """Write a warning, the first time that the server does this."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s %s %s", self.name, what, text)


def _text(error: Exception, length: int = 300) -> str:
    text = redact_patterns(" ".join(f"{type(error).__name__}: {error}".split())[:5000])
    return text if len(text) <= length else f"{text[:length]}…"


def describe_failure(server: str, error: Exception) -> LoggerError:
    """Return the error to raise where no run can be created.

    Args:
        server: The tracking URI.
        error: What the client raised.
    """
    text, is_managed = _text(error, 500), server.startswith("arn:")
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
    return LoggerError(f"No MLflow run can be created at {redact_patterns(server)}: {text}", hint=hint)
