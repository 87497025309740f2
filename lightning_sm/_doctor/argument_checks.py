"""Checks of hyperparameters and channel names: what SageMaker changes, drops or cannot pass to the script."""

import difflib
import re
from dataclasses import fields
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.job_checks import is_sdk_v3
from lightning_sm._doctor.project_source import find_text, uses_lightning_sm
from lightning_sm._settings.options import SageMakerOptions

__all__ = ["CHECKS"]

# What SDKs, toolkit and framework containers read: sagemaker_training/params.py, sagemaker/{estimator,fw_utils}.py,
# sagemaker_pytorch_container/training.py, sagemaker/debugger.
_KNOWN = frozenset(
    {
        "sagemaker_container_log_level",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_estimator_class_name",
        "sagemaker_estimator_module",
        "sagemaker_instance_type",
        "sagemaker_job_name",
        "sagemaker_num_of_gpus_per_host",
        "sagemaker_program",
        "sagemaker_region",
        "sagemaker_s3_output",
        "sagemaker_submit_directory",
        "sagemaker_toolkit_native_launcher_enabled",
        "sagemaker_use_spot_instances",
    }
)
_KNOWN_ENDS = ("_enabled", "_instance_groups", "_custom_mpi_options", "_processes_per_host", "_process_per_host")
_KNOWN_STARTS = ("sagemaker_mpi_", "sagemaker_parameter_server_", "sagemaker_torch_distributed_")
_SHOWN = 3


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _hyperparameters(machine: Machine) -> Iterator[Finding]:
    """Hyperparameters that the script's command line spells differently: None, booleans, lists, dicts."""
    job, check = machine.job, "hyperparameters"
    values = job.hyperparameters.values
    if not job.in_container:
        return
    changed: Dict[str, List[str]] = {}
    for name, value in values.items():
        spelling = _spelling(value, v3=is_sdk_v3(job))
        if spelling is not None:
            changed.setdefault(spelling, []).append(name)
    if changed and not uses_lightning_sm(machine):
        listed = "; ".join(f"{_names(names)} as {spelling}" for spelling, names in changed.items())
        yield Finding(
            check,
            Status.WARNING,
            f"on the command line of the script they are spelled differently: {listed}",
            "Read them with lightning_sm (SageMakerCLI, job().hyperparameters); flags without a value "
            "(store_true) and repeated options cannot be hyperparameters.",
        )
    else:
        count = f"{len(values)} hyperparameter{'' if len(values) == 1 else 's'}"
        yield Finding(check, Status.OK, f"{count}, read from {job.sources.get('hyperparameters', 'no file')}")


def _spelling(value: Any, *, v3: bool) -> Optional[str]:
    if value is None:
        return "null" if v3 else "an empty argument"
    if isinstance(value, bool):
        return "'true' behind the option" if v3 else "'True' behind the option"
    if isinstance(value, dict):
        return "JSON" if v3 else "a=1,b=2"
    if isinstance(value, list):
        return "JSON" if v3 else "a Python list"
    return None


def _order(machine: Machine) -> Iterator[Finding]:
    """Hyperparameters that the toolkit sorts before ``--config``, so that the file overrides them; lists of files."""
    values = machine.job.hyperparameters.values
    if "config" not in values or is_sdk_v3(machine.job):
        return
    earlier = [name for name in values if name < "config"]
    if earlier and not uses_lightning_sm(machine):
        yield Finding(
            "config file",
            Status.WARNING,
            f"the toolkit sorts the command line: {_names(earlier)} stand before --config, and the file overrides them",
            "Use lightning_sm's SageMakerCLI, where hyperparameters win over files.",
        )
    if isinstance(values["config"], list) and not uses_lightning_sm(machine):
        yield Finding(
            "config file",
            Status.WARNING,
            "the hyperparameter config is a list, which the toolkit does not pass as repeated --config",
            "Use lightning_sm's SageMakerCLI, which reads each file of the list, or name one file.",
        )


def _model_parallel(machine: Machine) -> Iterator[Finding]:
    """``--mp_parameters`` on the command line."""
    if "mp_parameters" in machine.job.hyperparameters.reserved and not uses_lightning_sm(machine):
        yield Finding(
            "mp_parameters",
            Status.WARNING,
            "--mp_parameters is on the command line of the script, which strict parsers refuse",
            "Use lightning_sm's SageMakerCLI, which leaves it out, or parse_known_args().",
        )


def _reserved_names(machine: Machine) -> Iterator[Finding]:
    """Hyperparameters that begin with ``sagemaker_`` and therefore do not reach the script."""
    unknown = [name for name in machine.job.hyperparameters.reserved if name.startswith("sagemaker_")]
    unknown = [name for name in unknown if not _is_known(name)]
    for name in unknown:
        options = [option.name for option in fields(SageMakerOptions)]
        close = difflib.get_close_matches(name[len("sagemaker_") :], options, n=1)
        yield Finding(
            "reserved names",
            Status.WARNING,
            f"the hyperparameter {name} does not reach the script: names that start with sagemaker_ are SageMaker's",
            f"Did you mean sagemaker.{close[0]}?" if close else "Give it a name without that prefix.",
        )


def _is_known(name: str) -> bool:
    return name in _KNOWN or name.endswith(_KNOWN_ENDS) or name.startswith(_KNOWN_STARTS)


def _names_for_sdk_v3(machine: Machine) -> Iterator[Finding]:
    """Names and values that end a job of SDK v3 before the script starts: dots, single quotes (errors)."""
    job, check = machine.job, "names"
    if not is_sdk_v3(job):
        return
    hint = "The job ends before the script starts: SDK v3 exports it as a shell variable. "
    dotted = [name for name in job.hyperparameters.values if re.fullmatch(r"[A-Za-z_][\w-]*", name) is None]
    if dotted:
        yield Finding(
            check,
            Status.ERROR,
            f"hyperparameter names with characters that SDK v3 cannot export: {_names(dotted)}",
            hint + "Put these settings into a config file, or pass them in SourceCode.command.",
        )
    quoted = [name for name, text in job.hyperparameters.texts.items() if "'" in text]
    if quoted:
        yield Finding(
            check,
            Status.ERROR,
            f"values with a single quote: {_names(quoted)}",
            hint + "Put these values into a config file.",
        )
    channels = [name for name in job.channels if re.fullmatch(r"\w+", name) is None]
    if channels:
        yield Finding(
            check,
            Status.ERROR,
            f"channel names with characters that SDK v3 cannot export: {_names(channels)}",
            hint + "Use letters, digits and underscores.",
        )


def _lost_variables(machine: Machine) -> Iterator[Finding]:
    """``SM_HP_*`` and ``SM_CHANNEL_*`` variables that a shell or ssh dropped."""
    job, environ = machine.job, machine.environ
    if is_sdk_v3(job) or not ("SM_HPS" in environ and machine.is_here):
        return
    expected = [f"SM_HP_{name.upper()}" for name in job.hyperparameters.values]
    expected += [f"SM_CHANNEL_{name.upper()}" for name in job.channels]
    lost = [name for name in expected if name not in environ and re.fullmatch(r"\w+", name) is None]
    if not lost:
        return
    text = f"lost on the way through a shell or ssh, because of a dot or hyphen in the name: {_names(lost)}"
    reads = find_text(machine, r"SM_(HP|CHANNEL)_")
    if reads is None:
        yield Finding("SM_* variables", Status.OK, f"{text}; the project's source names none of their kind")
    else:
        yield Finding(
            "SM_* variables",
            Status.WARNING,
            f"{text}; {reads} names variables of their kind",
            "Read lightning_sm.job(), which reads SageMaker's files, or SM_HPS; not single variables.",
        )


CHECKS: Tuple[Check, ...] = (
    _hyperparameters,
    _order,
    _model_parallel,
    _reserved_names,
    _names_for_sdk_v3,
    _lost_variables,
)
