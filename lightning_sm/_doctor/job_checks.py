"""Checks of the job: its world, what reaches the script, how it starts and ends."""

import os
import re
import time
from importlib.util import find_spec
from typing import Iterator, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine
from lightning_sm._doctor.host import find_on_path, gpus, names_in, read_text
from lightning_sm._doctor.project import find_text, is_sdk_v3, source_dir
from lightning_sm._sagemaker.in_job import config_directory
from lightning_sm._sagemaker.process_age import process_age
from lightning_sm._sagemaker.topology import Launcher

__all__ = ["CHECKS"]

# Programs that start the script as process 1 and do not forward SIGTERM: those of AWS's images, the toolkit, SDK v3.
_STARTERS = frozenset({"start_with_right_hostname.sh", "sm_train.sh", "train"})


def world(machine: Machine) -> Iterator[Finding]:
    """Hosts and instance groups that the launcher's world leaves out.

    Saves: a whole job, which ends with 0 while hosts idle, or train models of their own.
    """
    job, topology = machine.job, machine.topology
    hosts, groups = job.world_hosts, ", ".join(each.name for each in job.instance_groups)
    if len(job.instance_groups) > 1 and not job.distribution_groups:
        yield Finding(
            "world",
            f"Each of the instance groups {groups} trains alone: none is named as a part of the distribution.",
            "Use one instance group, or the distribution mpi, and name the groups that train together.",
        )
    elif topology is not None and topology.is_external and job.in_container and topology.num_nodes < len(hosts):
        yield Finding(
            "world",
            f"The {topology.world_size} process(es) of this world are on {topology.num_nodes} of {len(hosts)} hosts.",
            "Start the processes on all hosts, or request fewer instances.",
        )


def variables(machine: Machine) -> Iterator[Finding]:
    """Variables that the project reads and that are another host's, or absent, under this launcher.

    ``SM_*`` under mpirun are the main host's, which also exports no ``RANK``; ``MASTER_ADDR`` is the first host in the
    order of the alphabet, which may be in another group. A finding names the line of the project.

    Saves: a night, after which each host has read the same files and overwritten those of others.
    """
    job, environ, topology = machine.job, machine.environ, machine.topology
    named = environ.get("SM_CURRENT_HOST")
    if named and job.current_host and named != job.current_host:
        used = find_text(machine, r"SM_(CURRENT_|NUM_|RESOURCE_CONFIG|TRAINING_ENV)")
        if used:
            yield Finding(
                "variables",
                f"{used} reads SM_* variables, and on {job.current_host} they are those of {named}, by mpirun.",
                "Read lightning_sm.job(), which reads this host's own files.",
            )
    main = next((environ[name] for name in ("MASTER_ADDR", "SM_MASTER_ADDR") if environ.get(name) in job.hosts), None)
    if main and job.world_hosts and main != job.world_hosts[0]:
        used = find_text(machine, r"MASTER_ADDR")
        if used:
            yield Finding(
                "variables",
                f"{used} reads MASTER_ADDR, which is {main}, and rank 0 of this world is on {job.world_hosts[0]}.",
                "Take it from lightning_sm.Topology.resolve().main_address.",
            )
    if topology is not None and topology.launcher is Launcher.MPI:
        used = find_text(machine, r"[\"'](RANK|WORLD_SIZE|LOCAL_RANK)[\"']")
        if used:
            yield Finding(
                "variables",
                f"{used} reads RANK, WORLD_SIZE or LOCAL_RANK, which mpirun does not set: each rank takes a default.",
                "Read ranks from the trainer or lightning_sm.Topology.resolve().",
            )


def idle_accelerators(machine: Machine) -> Iterator[Finding]:
    """GPUs for which the launcher starts no process, and Neuron cores for which the image has no software.

    Saves: most of the job's price.
    """
    job, topology = machine.job, machine.topology
    seen = job.num_gpus or gpus(machine)
    started = topology.local_world_size if topology is not None and topology.is_external else None
    if job.in_container and started and started < seen:
        yield Finding(
            "idle accelerators",
            f"{started} process(es) on a host with {seen} GPUs: {seen - started} of them idle.",
            f"Start {seen} processes per host.",
        )
    kind = job.current_instance_type or ""
    devices = any(name.startswith("neuron") for name in names_in(machine.path("/dev")))
    software = [name for name in ("torch_neuronx", "torch_xla") if find_spec(name) is not None]
    if (kind.startswith(("ml.trn", "ml.inf")) or devices) and not software:
        yield Finding(
            "idle accelerators",
            f"{kind or 'This host'} has Neuron cores, and neither torch_neuronx nor torch_xla is installed.",
            "Use AWS's training image for Neuron, or a GPU instance.",
        )


def hyperparameters(machine: Machine) -> Iterator[Finding]:
    """What a script that does not use lightning_sm gets of hyperparameters: text, in another order.

    Saves: a training with other values than were asked for: ``bool("False")`` is true, and hyperparameters that the
    toolkit sorts before ``--config`` are overridden by the file.
    """
    job = machine.job
    values = job.hyperparameters.values
    changed = [name for name, value in values.items() if value is None or isinstance(value, (bool, list, dict))]
    earlier = [name for name in values if "config" in values and name < "config" and not is_sdk_v3(job)]
    if not (job.in_container and (changed or earlier)) or find_text(machine, r"\blightning_sm\b"):
        return
    hint = "Read them with lightning_sm (SageMakerCLI, job().hyperparameters)."
    if changed:
        yield Finding(
            "hyperparameters",
            f"None, booleans, lists and dicts reach the script as text: {', '.join(changed[:3])}.",
            hint,
        )
    if earlier:
        yield Finding(
            "hyperparameters",
            f"The toolkit sorts them: {', '.join(earlier[:3])} stand before --config, and the file overrides them.",
            hint,
        )


def source(machine: Machine) -> Iterator[Finding]:
    """The submitted source was extracted: the toolkit leaves files of the image in ``/opt/ml/code`` as they are.

    Saves: a training of yesterday's code.
    """
    job, folder = machine.job, source_dir(machine)
    uploaded = job.hyperparameters.reserved.get("sagemaker_submit_directory")
    is_uploaded = isinstance(uploaded, str) and uploaded.endswith(".tar.gz")
    age = process_age(1, machine.root)
    if not (job.in_container and is_uploaded and folder.is_dir()) or is_sdk_v3(job) or age is None:
        return
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    if files and all(file.stat().st_ctime < time.time() - age - 1 for file in files):
        yield Finding(
            "source",
            f"The files of {folder} are older than the container: {uploaded} was not extracted.",
            f"Delete {folder} from the image, or copy the source into the image and submit none.",
        )


def sigterm(machine: Machine) -> Iterator[Finding]:
    """Process 1 of the container forwards SIGTERM to the training.

    Saves: the time since the last save, at each interruption and stop.
    """
    command = " ".join((read_text(machine.path("/proc/1/cmdline")) or "").replace("\0", " ").split())
    starts_script = not _STARTERS.isdisjoint(map(os.path.basename, command.split()))
    if machine.job.in_container and starts_script and "lightning-sm" not in command:
        text = f"Process 1 ({command[:60]}) does not forward it: a job that is stopped makes no last checkpoint."
        entrypoint = "Start the container with the entry point that lightning-sm entrypoint prints; set "
        own = "Set " if is_sdk_v3(machine.job) else entrypoint
        yield Finding("sigterm", text, f"{own}sagemaker.save_every, so that little is lost.")


def checkpoint_upload(machine: Machine) -> Iterator[Finding]:
    """The job has a CheckpointConfig, so that SageMaker uploads checkpoints while it trains.

    Saves: everything before a spot interruption.
    """
    job = machine.job
    is_local_mode = not job.instance_groups
    by = job.sources.get("checkpoint_dir", "")
    if job.in_container and not is_local_mode and not by.endswith("checkpointconfig.json") and by != job.checkpoint_dir:
        yield Finding(
            "checkpoint upload",
            f"The job has no CheckpointConfig: {job.checkpoint_dir} is uploaded at its end only.",
            "Set checkpoint_s3_uri, or CheckpointConfig in the request.",
        )


def prepare_data(machine: Machine) -> Iterator[Finding]:
    """Data is prepared on each host, because hosts share no disk.

    Saves: the start of a job of which only the first host finds the data.
    """
    values = machine.job.hyperparameters.values
    off = [
        name
        for name, value in values.items()
        if name.endswith("prepare_data_per_node") and str(value).lower() in ("false", "0")
    ]
    if off and len(machine.job.world_hosts) > 1:
        yield Finding(
            "prepare data",
            f"{off[0]} is false: prepare_data runs on the main host only, and hosts share no disk.",
            f"Leave {off[0]} at its default, true.",
        )


def debugger(machine: Machine) -> Iterator[Finding]:
    """SageMaker Debugger's hooks, which SDK v2 asks for by default.

    ``debughookconfig.json`` is written by the service for a job with ``DebugHookConfig``. ``USE_SMDEBUG=0``, set by the
    user, turns the hooks off (``sagemaker_training/process.py``). Its last release is of 2021; it can end trainings
    under ``smdistributed`` (``awslabs/sagemaker-debugger`` issue 609).

    Saves: the time that hooks on every module and step take, and a distributed job with checkpoints, which AWS's
    "Considerations for Amazon SageMaker Debugger" exclude.
    """
    file = os.path.join(config_directory(machine.environ), "debughookconfig.json")
    is_on = os.path.exists(file) and machine.environ.get("USE_SMDEBUG") != "0"
    if machine.job.in_container and is_on and find_on_path(machine, "smdebug"):
        yield Finding(
            "debugger",
            "smdebug hooks into every module and step of this training, and knows no current release of torch.",
            "Pass debugger_hook_config=False to the estimator, or environment={'USE_SMDEBUG': '0'}.",
        )


def lightning_version(machine: Machine) -> Iterator[Finding]:
    """``requirements.txt`` names a version of Lightning.

    Saves: a restart, weeks later, whose newer Lightning cannot load the checkpoint.
    """
    text = read_text(source_dir(machine) / "requirements.txt") or ""
    found = re.search(r"^\s*(pytorch[-_.]lightning|lightning)\s*(\[[^\]]*\])?\s*(#.*)?$", text, re.MULTILINE | re.I)
    if machine.job.in_container and found is not None:
        yield Finding(
            "lightning version",
            f"requirements.txt names no version of {found[1]}: a restart of the job may install another one.",
            "Pin it; docs/versions.md has the version for each image.",
        )


CHECKS: Tuple[Check, ...] = (
    world,
    variables,
    idle_accelerators,
    hyperparameters,
    source,
    lightning_version,
    sigterm,
    checkpoint_upload,
    prepare_data,
    debugger,
)
