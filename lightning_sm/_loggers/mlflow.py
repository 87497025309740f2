"""What a job sets on Lightning's ``MLFlowLogger``: server, experiment and run, in place if it is ready-made."""

import functools
import importlib.util
import re
from collections import Counter
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm._loggers.mlflow_client import JobRun, describe_failure, make_client
from lightning_sm.errors import LoggerError

__all__ = [
    "check_server",
    "continue_run",
    "experiment_of",
    "is_local",
    "is_mlflow_class",
    "is_open",
    "set_in_place",
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
# How many loggers of a server, experiment and name this process has made.
_loggers: "Counter[Tuple[str, str, str]]" = Counter()


def is_mlflow_class(cls: Optional[type]) -> bool:
    """Whether a class is Lightning's ``MLFlowLogger``, of either namespace, or derived from it."""
    return cls is not None and any(base.__name__ == "MLFlowLogger" for base in cls.__mro__)


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


def set_in_place(logger: Any, arguments: Mapping[str, str]) -> None:
    """Set arguments of a ready-made ``MLFlowLogger`` that has begun no run."""
    for name, value in arguments.items():
        setattr(logger, f"_{name}", value)


def continue_run(logger: Any, job_name: Optional[str], directory: str) -> None:
    """Let an ``MLFlowLogger`` continue the run of this job, and let failing requests end no training.

    The run is found by its tags on the server, so that a job continues it that ended before its first checkpoint.
    Nothing is sent here: the run is looked for when Lightning begins to log, on global rank zero.

    Args:
        logger: The logger.
        job_name: The name of the job; ``None`` if it is unknown, so that each start creates a run.
        directory: The directory for files beside the logs, which such a logger has not if its server is remote.

    Raises:
        LoggerError: There is no client for its tracking URI.
    """
    if hasattr(logger, "_job_directory"):
        return
    job_run = None
    if job_name is not None and logger._run_id is None:
        name = re.sub(r"['\"`\\]", "_", logger._run_name or job_name)
        key = (logger._tracking_uri, logger._experiment_name, name)
        _loggers[key] += 1
        job_run = JobRun(job_name, name if _loggers[key] == 1 else f"{name} {_loggers[key]}")
    try:
        logger._mlflow_client = make_client(logger._tracking_uri, job_run)
    except Exception as error:
        raise describe_failure(logger._tracking_uri, error) from error
    logger._job_directory = directory
    cls: Any = type(logger)
    logger.__class__ = _in_job(cls)


@functools.lru_cache(maxsize=None)
def _in_job(cls: Any) -> Any:
    """Derive a logger whose ``save_dir`` is never ``None``, as LightningCLI needs it, which saves its config there."""

    def save_dir(self: Any) -> str:
        own: Optional[str] = super(derived, self).save_dir
        return own or str(self._job_directory)

    def reduce(self: Any) -> Any:
        return _restore, (cls, self.__dict__)

    body = {"save_dir": property(save_dir), "__reduce__": reduce, "__module__": cls.__module__, "__doc__": cls.__doc__}
    derived: Any = type(cls.__name__, (cls,), body)
    return derived


def _restore(cls: type, state: Dict[str, Any]) -> Any:
    made: Any = object.__new__(_in_job(cls))
    made.__dict__.update(state)
    return made
