"""Checks of the job: what kind of container this is, its launcher, its ranks with their evidence, its hosts."""

import importlib.util
import json
from contextlib import suppress
from typing import Any, Iterator, Mapping, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology

__all__ = ["CHECKS", "is_local_mode", "is_sdk_v3"]

# What SageMaker writes or sets in containers that are no training jobs. AWS, "Configure processing inputs" and
# "Get app metadata"; sagemaker-inference-toolkit, sagemaker_inference/parameters.py.
_PROCESSING = "/opt/ml/config/processingjobconfig.json"
_NOTEBOOK = "/opt/ml/metadata/resource-metadata.json"
_ENDPOINT_VARIABLES = ("SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_SAFE_PORT_RANGE", "SAGEMAKER_BATCH")
# Clusters that Lightning recognises before it asks anything else, by variables of which one is enough.
_CLUSTERS = {
    "Slurm": ("SLURM_NTASKS", "SLURM_JOB_ID"),
    "LSF": ("LSB_JOBID",),
    "Kubeflow": ("KUBERNETES_PORT",),
}
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
    for problem in machine.problems:
        hint = problem.hint or "SageMaker writes the file and sets the variable; look for what changes them."
        yield Finding("job", Status.ERROR, problem.problem, hint)


def _container(machine: Machine) -> Iterator[Finding]:
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
    job, environ, check = machine.job, machine.environ, "job name"
    if job.in_container and job.name is not None:
        yield Finding(check, Status.OK, f"{job.name} (by {job.sources.get('name', 'its files')})")
    elif job.in_container and machine.is_here and not _is_mpirun(machine):
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


def _is_mpirun(machine: Machine) -> bool:
    return machine.topology is not None and machine.topology.launcher == Launcher.MPI


def _asked(job: TrainingJob) -> Optional[str]:
    """Return the distribution that the toolkit starts, in its order of precedence."""
    return next((name for switch, name in _SWITCHES.items() if job.hyperparameters.enabled(switch)), None)


def _launcher(machine: Machine) -> Iterator[Finding]:
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


def _ranks(machine: Machine) -> Iterator[Finding]:
    job, topology, check = machine.job, machine.topology, "ranks"
    if topology is None or not machine.is_here:
        return
    pairs = (
        ("rank", "global_rank", "world_size"),
        ("local rank", "local_rank", "local_world_size"),
        ("node", "node_rank", "num_nodes"),
    )
    known = [_rank(topology, *pair) for pair in pairs if getattr(topology, pair[2]) is not None]
    yield Finding(check, Status.OK, "; ".join(known))
    hosts, sizes = job.world_hosts, topology.world_size
    if topology.launcher == Launcher.MPI and machine.environ.get("OMPI_COMM_WORLD_NODE_RANK"):
        counted = machine.environ["OMPI_COMM_WORLD_NODE_RANK"]
        if counted != str(topology.node_rank):
            text = f"OMPI_COMM_WORLD_NODE_RANK={counted} counts processes of this host, which is node "
            yield Finding("node rank", Status.OK, f"{text}{topology.node_rank}")
    elif machine.environ.get("NODE_RANK") not in (None, "", str(topology.node_rank)):
        yield Finding(
            "node rank",
            Status.WARNING,
            f"NODE_RANK={machine.environ['NODE_RANK']}, but this host is node {topology.node_rank} by "
            f"{topology.sources.get('node_rank', 'default')}",
            "Do not set NODE_RANK in the job's environment: it is the same on every host.",
        )
    if topology.is_external and job.in_container and topology.num_nodes != len(hosts) and not _separate_groups(job):
        yield Finding(
            check,
            Status.WARNING,
            f"the world of {sizes} process(es) spans {topology.num_nodes} of {len(hosts)} hosts {list(hosts)}",
            "Start the processes on all hosts, or request fewer instances."
            if topology.num_nodes < len(hosts)
            else "Compare the number of processes per host with the launcher's.",
        )


def _rank(topology: Topology, noun: str, rank: str, size: str) -> str:
    return f"{noun} {getattr(topology, rank)} of {getattr(topology, size)} (by {topology.sources.get(size, 'default')})"


def _variables_of_another_host(machine: Machine) -> Iterator[Finding]:
    named, current = machine.environ.get("SM_CURRENT_HOST"), machine.job.current_host
    if machine.is_here and named and current and named != current:
        yield Finding(
            "SM_* variables",
            Status.WARNING,
            f"they are those of {named}, but this host is {current}: mpirun copies the main host's",
            "Do not read SM_* in the script; lightning_sm.job() reads this host's files.",
        )


def _hosts(machine: Machine) -> Iterator[Finding]:
    job, environ = machine.job, machine.environ
    hosts, listed = job.world_hosts, ", ".join(job.world_hosts)
    if len(hosts) < 2:
        return
    order = "" if list(hosts) == sorted(hosts) else ", in the order of its group, which is not sorted"
    yield Finding("hosts", Status.OK, f"{listed}: the first one is the main host{order}")
    for name in ("MASTER_ADDR", "SM_MASTER_ADDR"):
        value = environ.get(name)
        if value in job.hosts and value != hosts[0]:
            used = machine.topology.main_address if machine.topology is not None else hosts[0]
            yield Finding(
                "main host",
                Status.WARNING,
                f"{name} is {value}, but the first host of this world, {hosts[0]}, has rank 0; used is {used}",
                "Do not compute the main host from a sorted list of hosts; "
                "take it from lightning_sm.Topology.resolve().main_address.",
            )


def _separate_groups(job: TrainingJob) -> bool:
    return len(job.instance_groups) > 1 and not job.distribution_groups


def _instance_groups(machine: Machine) -> Iterator[Finding]:
    job, check = machine.job, "instance groups"
    if len(job.instance_groups) < 2:
        return
    groups = "; ".join(f"{each.name}: {len(each.hosts)} x {each.instance_type}" for each in job.instance_groups)
    if _separate_groups(job):
        yield Finding(
            check,
            Status.WARNING,
            f"{groups}: each group trains alone, because no group is named as a part of the distribution",
            "Use one instance group, or launch with mpi and name the groups that train together.",
        )
    elif job.current_group_name not in job.distribution_groups:
        yield Finding(
            check,
            Status.WARNING,
            f"{groups}: this host's group {job.current_group_name} runs the script outside of the distribution",
            "Let the script do something else on hosts of this group.",
        )
    else:
        yield Finding(check, Status.OK, groups)


def _other_clusters(machine: Machine) -> Iterator[Finding]:
    if not (machine.job.in_container and machine.is_here):
        return
    for cluster, names in _CLUSTERS.items():
        found = [name for name in names if name in machine.environ]
        if found:
            yield Finding(
                "cluster environment",
                Status.WARNING,
                f"{', '.join(found)} set: Lightning takes this for {cluster} where nothing else is passed",
                "Unset it, or pass plugins=[lightning_sm.SageMakerEnvironment()] to the Trainer.",
            )
    if _is_mpirun(machine) and importlib.util.find_spec("mpi4py") is not None:
        text = "Lightning alone uses its MPIEnvironment under mpirun; lightning_sm sets SageMakerEnvironment"
        yield Finding("cluster environment", Status.OK, text)


def _distribution(machine: Machine) -> Iterator[Finding]:
    job, check = machine.job, "distribution"
    if not (job.asks_for_smddp and machine.is_here):
        return
    if not _is_importable("smdistributed"):
        yield Finding(
            check,
            Status.WARNING,
            "smdistributed.dataparallel is switched on (by pytorchddp too, since SDK 2.221), but not installed: NCCL "
            "trains",
            "Use the distribution torch_distributed, or an image that contains the library.",
        )
    if _is_mpirun(machine):
        yield Finding(
            check,
            Status.WARNING,
            "smddprun is not in this image: only OMPI_* tell the ranks, and RANK, WORLD_SIZE and LOCAL_RANK are absent",
            "Read ranks from the trainer or lightning_sm.Topology.resolve(), or use torch_distributed.",
        )


def _is_importable(name: str) -> bool:
    with suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _devices(machine: Machine) -> Iterator[Finding]:
    job, topology, check = machine.job, machine.topology, "devices"
    if topology is None or not (job.in_container and machine.is_here):
        return
    devices, nodes = (_count(job.hyperparameters.values, f"trainer.{name}") for name in ("devices", "num_nodes"))
    gpus, local = job.num_gpus or 0, topology.local_world_size
    if topology.is_external and (devices or nodes):
        product = (devices or local or 1) * (nodes or topology.num_nodes)
        if product != topology.world_size:
            yield Finding(
                check,
                Status.ERROR,
                f"the hyperparameters ask for {product} processes (devices x num_nodes), but the launcher started "
                f"{topology.world_size}",
                "Leave trainer.devices and trainer.num_nodes out of the hyperparameters.",
            )
    elif nodes and nodes != topology.num_nodes:
        yield Finding(
            check,
            Status.ERROR,
            f"the hyperparameter trainer.num_nodes is {nodes}, but the job has {topology.num_nodes} host(s)",
            "Leave trainer.num_nodes out of the hyperparameters.",
        )
    used = local if topology.is_external else devices or gpus
    if topology.launcher == Launcher.HOST and gpus > 1 and used == gpus:
        yield Finding(check, Status.OK, f"{gpus} GPUs: Lightning starts a process for each")
    elif gpus and used and used < gpus:
        yield Finding(
            check,
            Status.WARNING,
            f"{used} process(es) on a host with {gpus} GPUs: {gpus - used} GPU(s) idle",
            f"Start {gpus} processes per host.",
        )
    elif gpus and used and used > gpus and topology.launcher != Launcher.MPI:
        yield Finding(
            check,
            Status.ERROR,
            f"{used} processes on a host with {gpus} GPU(s): NCCL refuses two processes on one GPU",
            f"Start {gpus} process(es) per host.",
        )


def _count(values: Mapping[str, Any], name: str) -> Optional[int]:
    text = str(values.get(name, ""))
    return int(text) if text.isdigit() and int(text) > 0 else None


CHECKS: Tuple[Check, ...] = (
    _job_files,
    _container,
    _job_name,
    _launcher,
    _ranks,
    _variables_of_another_host,
    _hosts,
    _instance_groups,
    _other_clusters,
    _distribution,
    _devices,
)
