"""Checks of the world: ranks with their evidence, hosts and their order, instance groups, GPUs of each process."""

from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import is_importable
from lightning_sm._doctor.job_checks import is_mpirun
from lightning_sm._doctor.project_source import find_text
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology

__all__ = ["CHECKS"]

# Clusters that Lightning recognises before it asks anything else, by variables of which one is enough.
_CLUSTERS = {
    "Slurm": ("SLURM_NTASKS", "SLURM_JOB_ID"),
    "LSF": ("LSB_JOBID",),
    "Kubeflow": ("KUBERNETES_PORT",),
}
_SHOWN = 8


def _ranks(machine: Machine) -> Iterator[Finding]:
    """Ranks and sizes, each with the variable or file that it comes from; hosts that the world leaves out."""
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
            f"the world of {sizes} process(es) spans {topology.num_nodes} of {len(hosts)} hosts ({_listed(hosts)})",
            "Start the processes on all hosts, or request fewer instances."
            if topology.num_nodes < len(hosts)
            else "Compare the number of processes per host with the launcher's.",
        )


def _rank(topology: Topology, noun: str, rank: str, size: str) -> str:
    return f"{noun} {getattr(topology, rank)} of {getattr(topology, size)} (by {topology.sources.get(size, 'default')})"


def _variables_of_another_host(machine: Machine) -> Iterator[Finding]:
    """Whether the ``SM_*`` variables are this host's; mpirun copies the main host's."""
    named, current = machine.environ.get("SM_CURRENT_HOST"), machine.job.current_host
    if machine.is_here and named and current and named != current:
        text = f"they are those of {named}, but this host is {current}: mpirun copies the main host's"
        hint = "Do not read SM_* in the script; lightning_sm.job() reads this host's files."
        yield _where_used(machine, "SM_* variables", text, r"SM_(CURRENT_|NUM_|RESOURCE_CONFIG|TRAINING_ENV)", hint)


def _where_used(machine: Machine, check: str, text: str, pattern: str, hint: str) -> Finding:
    """What the platform sets is a fault only where the project reads it."""
    used = find_text(machine, pattern)
    if used is None:
        return Finding(check, Status.OK, f"{text}; lightning_sm does not use it, and the project's source neither")
    return Finding(check, Status.WARNING, f"{text}; {used} uses it", hint)


def _hosts(machine: Machine) -> Iterator[Finding]:
    """The hosts in their order, and whether the variables name the first one as the main host."""
    job, environ = machine.job, machine.environ
    hosts, listed = job.world_hosts, _listed(job.world_hosts)
    if len(hosts) < 2:
        return
    order = "" if list(hosts) == sorted(hosts) else ", in the order of its group, which is not sorted"
    yield Finding("hosts", Status.OK, f"{listed}: the first one is the main host{order}")
    for name in ("MASTER_ADDR", "SM_MASTER_ADDR"):
        value = environ.get(name)
        if value in job.hosts and value != hosts[0]:
            used = machine.topology.main_address if machine.topology is not None else hosts[0]
            text = f"{name} is {value}, but the first host of this world, {hosts[0]}, has rank 0; used is {used}"
            hint = (
                "Do not compute the main host from a sorted list of hosts; "
                "take it from lightning_sm.Topology.resolve().main_address."
            )
            yield _where_used(machine, "main host", text, r"MASTER_ADDR", hint)


def _listed(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    return ", ".join(hosts[:_SHOWN]) + more


def _separate_groups(job: TrainingJob) -> bool:
    return len(job.instance_groups) > 1 and not job.distribution_groups


def _instance_groups(machine: Machine) -> Iterator[Finding]:
    """Instance groups: which of them train together, and which alone."""
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
    """Variables of other clusters (Slurm, LSF, Kubeflow), from which Lightning would take its ranks."""
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
    if is_mpirun(machine) and is_importable("mpi4py"):
        text = "Lightning alone uses its MPIEnvironment under mpirun; lightning_sm sets SageMakerEnvironment"
        yield Finding("cluster environment", Status.OK, text)


def _distribution(machine: Machine) -> Iterator[Finding]:
    """The switch of smdistributed.dataparallel without its library or without ``smddprun``."""
    job, check = machine.job, "distribution"
    if not (job.asks_for_smddp and machine.is_here):
        return
    if not is_importable("smdistributed"):
        yield Finding(
            check,
            Status.WARNING,
            "smdistributed.dataparallel is switched on (by pytorchddp too, since SDK 2.221), but not installed: NCCL "
            "trains",
            "Use the distribution torch_distributed, or an image that contains the library.",
        )
    if is_mpirun(machine):
        text = "smddprun is not in this image: only OMPI_* tell the ranks; RANK, WORLD_SIZE and LOCAL_RANK are absent"
        hint = "Read ranks from the trainer or lightning_sm.Topology.resolve(), or use torch_distributed."
        yield _where_used(machine, check, text, r"[\"'](RANK|WORLD_SIZE|LOCAL_RANK)[\"']", hint)


def _devices(machine: Machine) -> Iterator[Finding]:
    """Processes against GPUs; two on one GPU, or hyperparameters that ask for another world, are errors."""
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
    _ranks,
    _variables_of_another_host,
    _hosts,
    _instance_groups,
    _other_clusters,
    _distribution,
    _devices,
)
