"""Checks of how the job starts and ends: its source, SIGTERM, checkpoint uploads, the failure reason, other hosts."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import read_text
from lightning_sm._doctor.job_checks import is_local_mode, is_sdk_v3
from lightning_sm._doctor.project_source import entry_script, source_dir
from lightning_sm._sagemaker.topology import Launcher
from lightning_sm.errors import DoctorError

__all__ = ["CHECKS"]

# Words in the command of process 1 that start the script and do not forward SIGTERM: AWS's images, the toolkit, SDK v3.
_STARTERS = ("start_with_right_hostname", "sm_train.sh", "train")


def _is_toolkit_job(machine: Machine) -> bool:
    return machine.job.in_container and machine.is_here and not is_sdk_v3(machine.job)


def _source(machine: Machine) -> Iterator[Finding]:
    """Whether the submitted source was extracted or the image's own files run; a missing script is an error."""
    if not _is_toolkit_job(machine):
        return
    folder, script, check = source_dir(machine), entry_script(machine), "source"
    uploaded = machine.job.hyperparameters.reserved.get("sagemaker_submit_directory")
    if not (folder.is_dir() and isinstance(uploaded, str) and uploaded.endswith(".tar.gz")):
        return
    ignored = f"{uploaded} was not extracted, because the image has files in {folder}"
    hint = f"Delete {folder} from the image, or copy the source into the image and submit none."
    if script is not None and not script.exists():
        yield Finding(check, Status.ERROR, f"{script.name} is missing: {ignored}", hint)
        return
    started = _start_of_container(machine)
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    if files and started is not None and all(file.stat().st_ctime < started - 1 for file in files):
        yield Finding(check, Status.WARNING, f"older than the container: {ignored}", hint)
    else:
        yield Finding(check, Status.OK, f"{uploaded} in {folder}")


def _start_of_container(machine: Machine) -> Optional[float]:
    """Return when process 1 started, in seconds since the epoch; see ``proc(5)``."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        ticks = machine.path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
        boot = next(line for line in machine.path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + int(ticks) / os.sysconf("SC_CLK_TCK")
    return None


def _setup_py(machine: Machine) -> Iterator[Finding]:
    """``setup.py`` in the source, which changes how the script is started; an error with torch_distributed."""
    if not (_is_toolkit_job(machine) and (source_dir(machine) / "setup.py").exists()):
        return
    hyperparameters = machine.job.hyperparameters
    script = str(hyperparameters.reserved.get("sagemaker_program") or "train.py")
    if script.endswith(".sh"):
        return
    fails = hyperparameters.enabled("sagemaker_torch_distributed_enabled")
    yield Finding(
        "setup.py",
        Status.ERROR if fails else Status.WARNING,
        f"with setup.py in the source the toolkit installs it as a package and runs python -m {Path(script).stem}"
        + (", which torch_distributed does not support" if fails else ""),
        "Move setup.py out of source_dir; use requirements.txt and pyproject.toml.",
    )


def _sigterm(machine: Machine) -> Iterator[Finding]:
    """Whether process 1 of the container forwards SIGTERM to the training."""
    if not (machine.job.in_container and machine.is_here):
        return
    check, command = "SIGTERM", ""
    with suppress(OSError):
        raw = machine.path("/proc/1/cmdline").read_bytes()
        command = " ".join(raw.decode(errors="replace").replace("\0", " ").split())
    words = [os.path.basename(word) for word in command.split()]
    if "lightning-sm" in command:
        yield Finding(check, Status.OK, "process 1 is lightning-sm's entry point, which forwards it to the training")
    elif any(starter in words or starter in " ".join(words) for starter in _STARTERS):
        yield Finding(
            check,
            Status.WARNING,
            f"process 1 ({command[:60]}) does not forward it: a spot interruption, StopTrainingJob or a time limit "
            "ends the job without a last checkpoint",
            "Set sagemaker.save_every, so that little is lost."
            if is_sdk_v3(machine.job)
            else "Start the container with the entry point that lightning-sm entrypoint prints; set "
            "sagemaker.save_every.",
        )


def _checkpoint_upload(machine: Machine) -> Iterator[Finding]:
    """Whether the checkpoint directory is synchronized with S3."""
    job, check = machine.job, "checkpoint upload"
    source = job.sources.get("checkpoint_dir")
    if not job.in_container or source is None:
        return
    if source.endswith("checkpointconfig.json"):
        yield Finding(check, Status.OK, f"{job.checkpoint_dir} is synchronized with S3 (by {source})")
    elif source == job.checkpoint_dir:
        text = f"{job.checkpoint_dir} exists; it is synchronized with S3 if the job has a CheckpointConfig"
        yield Finding(check, Status.OK, text)
    elif is_local_mode(job):
        yield Finding(check, Status.OK, f"none in the SDK's local mode: checkpoints stay in {job.checkpoint_dir}")
    elif machine.is_here:
        yield Finding(
            check,
            Status.WARNING,
            f"the job has no CheckpointConfig: a job that is interrupted (spot) starts afresh; "
            f"{job.checkpoint_dir} is uploaded at the end only",
            "Set checkpoint_s3_uri, or CheckpointConfig in the request.",
        )


def _failure_reason(machine: Machine) -> Iterator[Finding]:
    """The failure file: an earlier text in it, and crashes that the toolkit reports as success."""
    job, check = machine.job, "failure reason"
    if not (job.in_container and machine.is_here and job.failure_file):
        return
    written = read_text(Path(job.failure_file))
    # What another host's doctor found arrives while this host is examined.
    if written and not written.startswith(DoctorError.__name__):
        yield Finding(
            check,
            Status.WARNING,
            f"{job.failure_file} exists already, and the first text in it stays the reason",
            "Delete the file before the training starts.",
        )
        return
    parts = ["exit codes become 1, the first 1,024 characters of the file are the reason"]
    topology = machine.topology
    world = 0 if topology is None else topology.world_size or topology.num_nodes
    if not is_sdk_v3(job) and world > 1 and job.num_gpus == 0:
        parts.append("the toolkit reports a crash of gloo as a success unless the file exists")
    yield Finding(check, Status.OK, f"{job.failure_file}: " + "; ".join(parts))


def _other_hosts(machine: Machine) -> Iterator[Finding]:
    """What differs with several hosts: merged uploads, containers that end later, data prepared on one host only."""
    job, topology, check = machine.job, machine.topology, "several hosts"
    if len(job.world_hosts) < 2:
        return
    yield Finding(
        check,
        Status.OK,
        "uploads of all hosts are merged, so that rank 0 alone writes models and shared names; what a host writes "
        "does not appear on others",
    )
    if topology is not None and topology.launcher == Launcher.MPI:
        text = "under mpirun the other containers end up to two minutes after the main one, with code 0"
        yield Finding(check, Status.OK, text)
    own = [name for name in job.hyperparameters.values if name.endswith("prepare_data_per_node")]
    off = [name for name in own if str(job.hyperparameters.values[name]).lower() in ("false", "0")]
    if off:
        yield Finding(
            check,
            Status.WARNING,
            f"{off[0]} is false: prepare_data runs on the main host only, and hosts share no disk",
            f"Leave {off[0]} at its default, true.",
        )


def _links(machine: Machine) -> Iterator[Finding]:
    """Symbolic links in the checkpoint and model directories."""
    job = machine.job
    if not (job.in_container and machine.is_here):
        return
    found: List[str] = []
    for folder in (job.checkpoint_dir, job.model_dir):
        with suppress(OSError):
            found += [entry.path for entry in os.scandir(folder or "") if entry.is_symlink()]
    if found:
        yield Finding(
            "links",
            Status.WARNING,
            f"{', '.join(sorted(found)[:3])}: S3 has no links",
            "Use save_last=True instead of 'link', or copy the file.",
        )


CHECKS: Tuple[Check, ...] = (
    _source,
    _setup_py,
    _sigterm,
    _checkpoint_upload,
    _failure_reason,
    _other_hosts,
    _links,
)
