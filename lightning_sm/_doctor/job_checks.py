"""Checks of the job: what kind of container this is, its name, its launcher."""

import json
from contextlib import suppress
from typing import Any, Iterator, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher

__all__ = ["CHECKS", "is_local_mode", "is_mpirun", "is_sdk_v3"]

# What SageMaker writes or sets in containers that are no training jobs. AWS, "Configure processing inputs" and
# "Get app metadata"; sagemaker-inference-toolkit, sagemaker_inference/parameters.py.
_PROCESSING = "/opt/ml/config/processingjobconfig.json"
_NOTEBOOK = "/opt/ml/metadata/resource-metadata.json"
_ENDPOINT_VARIABLES = ("SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_SAFE_PORT_RANGE", "SAGEMAKER_BATCH")
_SWITCHES = {
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_pytorch_ddp_enabled": "pytorchddp",
    "sagemaker_torch_distributed_enabled": "torch_distributed",
    "sagemaker_distributed_dataparallel_enabled": "smdistributed.dataparallel",
}


def is_sdk_v3(job: TrainingJob) -> bool:
    """Whether SDK v3's container drivers started the job."""
    return "sm_drivers" in job.channels


def is_local_mode(job: TrainingJob) -> bool:
    """Whether the SDK's local mode started the container."""
    return job.in_container and not job.instance_groups


def _job_files(machine: Machine) -> Iterator[Finding]:
    """SageMaker's files and the launcher's variables can be read and do not contradict each other; else an error."""
    for problem in machine.problems:
        hint = problem.hint or "SageMaker writes the file and sets the variable; look for what changes them."
        yield Finding("job", Status.ERROR, problem.problem, hint)


def _container(machine: Machine) -> Iterator[Finding]:
    """The kind of container: training job, SDK's local mode, Processing, endpoint, Studio, notebook, none."""
    job, check = machine.job, "container"
    if job.in_container:
        kind = "container of the SDK's local mode (no instance groups, no checkpoint uploads)"
        kind = kind if is_local_mode(job) else "training container"
        by = "SDK v3's drivers" if is_sdk_v3(job) else "the training toolkit"
        started = f", started by {by}" if machine.is_here and "SM_HOSTS" in machine.environ else ""
        yield Finding(check, Status.OK, f"{kind}{started}; {job.current_instance_type or 'unknown instance type'}")
    elif machine.path(_PROCESSING).exists():
        yield _no_training(check, f"a Processing job ({_PROCESSING} exists)")
    elif any(name in machine.environ for name in _ENDPOINT_VARIABLES):
        found = next(name for name in _ENDPOINT_VARIABLES if name in machine.environ)
        yield _no_training(check, f"an endpoint or a batch transform ({found} is set)")
    elif machine.path(_NOTEBOOK).exists():
        yield Finding(check, Status.OK, f"{_notebook(machine)}: no training job, defaults hold")
    elif not machine.problems:
        yield Finding(check, Status.OK, "no SageMaker container: defaults hold")


def _no_training(check: str, what: str) -> Finding:
    return Finding(
        check,
        Status.WARNING,
        f"{what}, no training job: channels, ranks and checkpoint uploads do not exist here",
        "Start a training job, or pass directories as arguments.",
    )


def _notebook(machine: Machine) -> str:
    content: Any = None
    with suppress(OSError, ValueError):
        content = json.loads(machine.path(_NOTEBOOK).read_text(encoding="utf-8"))
    is_instance = isinstance(content, dict) and "notebook-instance" in str(content.get("ResourceArn"))
    return "a SageMaker notebook instance" if is_instance else "SageMaker Studio"


def _job_name(machine: Machine) -> Iterator[Finding]:
    """The name of the job, by which a restart is recognised, and variables that only look like a job."""
    job, environ, check = machine.job, machine.environ, "job name"
    if job.in_container and job.name is not None:
        yield Finding(check, Status.OK, f"{job.name} (by {job.sources.get('name', 'its files')})")
    elif job.in_container and machine.is_here and not is_mpirun(machine):
        yield Finding(
            check,
            Status.WARNING,
            "unknown (TRAINING_JOB_NAME is not set): a restart is recognised by its settings only",
            "Set TRAINING_JOB_NAME, or keep hyperparameters and config the same when the job restarts.",
        )
    elif not job.in_container and not machine.problems:
        misleading = [name for name in ("SAGEMAKER_JOB_NAME", "SM_CURRENT_HOST", "SM_HOSTS") if name in environ]
        if misleading:
            yield Finding(
                check,
                Status.WARNING,
                f"{', '.join(misleading)} set, but this is no training container: it has neither resourceconfig.json "
                "nor SM_HOSTS with SM_CURRENT_HOST",
                f"Unset {', '.join(misleading)}: other libraries take it for a sign of SageMaker.",
            )


def is_mpirun(machine: Machine) -> bool:
    """Whether Open MPI's variables alone tell the ranks."""
    return machine.topology is not None and machine.topology.launcher == Launcher.MPI


def _asked(job: TrainingJob) -> Optional[str]:
    """Return the distribution that the toolkit starts, in its order of precedence."""
    return next((name for switch, name in _SWITCHES.items() if job.hyperparameters.enabled(switch)), None)


def _launcher(machine: Machine) -> Iterator[Finding]:
    """The launcher, the variable that shows it, and whether it is the one that the job's distribution asks for."""
    job, topology, check = machine.job, machine.topology, "launcher"
    asked = _asked(job)
    if not machine.is_here:
        yield Finding(check, Status.OK, f"distribution {asked}" if asked else "no distribution in the hyperparameters")
        return
    if topology is None:
        return
    launcher, environ = topology.launcher, machine.environ
    partial = [name for name in ("RANK", "WORLD_SIZE", "NODE_RANK") if environ.get(name)]
    is_in_group = not job.distribution_groups or job.current_group_name in job.distribution_groups
    if launcher == Launcher.HOST and asked and is_in_group:
        yield Finding(
            check,
            Status.WARNING,
            f"the job asks for {asked}, but no variable of its launcher is set here: one process per host",
            "Run this from the job's script; a shell in the container does not have the launcher's variables.",
        )
    elif launcher == Launcher.HOST and partial and "LOCAL_RANK" not in environ:
        named = ", ".join(f"{name}={environ[name]}" for name in partial)
        yield Finding(
            check,
            Status.WARNING,
            f"one process per host; {named} without a launcher that starts the processes (not used)",
            f"Do not set {', '.join(partial)}; WORLD_SIZE counts processes, not hosts.",
        )
    elif launcher == Launcher.HOST:
        note = ": MASTER_ADDR is set in every container and names no launcher" if "MASTER_ADDR" in environ else ""
        yield Finding(check, Status.OK, f"{launcher}{note}")
    else:
        evidence = topology.sources.get("global_rank") or topology.sources.get("local_rank")
        yield Finding(check, Status.OK, f"{launcher}" + (f" (by {evidence})" if topology.is_external else ""))


CHECKS: Tuple[Check, ...] = (_job_files, _container, _job_name, _launcher)
