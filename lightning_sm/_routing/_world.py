"""Routes the world that the launcher made into the trainer's settings."""

from typing import Any, Iterator, Optional, Tuple

from lightning_sm._job import TrainingJob
from lightning_sm._routing._value import RoutedSetting, said
from lightning_sm._settings import Settings
from lightning_sm._topology import Launcher, Topology

__all__ = ["route_world"]

_NODES, _DEVICES, _ACCELERATOR = "trainer.num_nodes", "trainer.devices", "trainer.accelerator"
# What LightningCLI writes with --print_config where nobody said anything (None up to 1.9), and "all there are".
_OPEN = {_NODES: (1, "1"), _DEVICES: (-1, "-1")}


def route_world(job: TrainingJob, topology: Topology, settings: Settings) -> Iterator[RoutedSetting]:
    """Yield ``num_nodes``, ``devices``, ``accelerator`` and ``strategy`` as far as they are open.

    ``auto`` and the defaults that LightningCLI prints leave them open. A number of hosts or devices that stands in a
    config file and cannot be had here gives way, too: a config that another job saved holds that job's world.

    Raises:
        TopologyError: The command line, a hyperparameter or a program asks for another number of hosts or processes.
    """
    for key, value, source in _world(job, topology, settings):
        given = settings.get(key)
        if value is None or settings.is_opaque(key):
            continue
        if not _is_open(key, given):
            if settings.is_explicit(key):
                _refuse_other(key, given, topology, settings)
                continue
            if not _gives_way(key, given, topology, job):
                continue
        if given is None or given not in (value, str(value)):
            yield RoutedSetting(key, value, source, said(settings, key))


def _is_open(key: str, given: Any) -> bool:
    return given is None or (isinstance(given, (str, int)) and (given == "auto" or given in _OPEN.get(key, ())))


def _refuse_other(key: str, given: Any, topology: Topology, settings: Settings) -> None:
    """Refuse a number that is not the job's and that somebody has set for this run."""
    expected = {_NODES: topology.num_nodes, _DEVICES: topology.local_world_size}.get(key)
    count = _count(given)
    if None not in (expected, count) and count != expected:
        topology.refuse(f"{settings.origin(key)} said {key.partition('.')[2]}={given}")


def _gives_way(key: str, given: Any, topology: Topology, job: TrainingJob) -> bool:
    """Whether what a config file says cannot be had here. A list of devices is meant as it stands."""
    if key == _NODES:
        return True
    count = _count(given)
    if key != _DEVICES or count is None:
        return False
    return topology.is_external or count > (job.num_gpus or count)


def _count(given: Any) -> Optional[int]:
    """The number of devices or hosts that is asked for, where it is a number."""
    if isinstance(given, str) and given.isdigit():
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None


def _world(job: TrainingJob, topology: Topology, settings: Settings) -> Iterator[Tuple[str, Any, str]]:
    if topology.launcher == Launcher.LOCAL:
        return
    sources = topology.sources
    yield _NODES, topology.num_nodes, sources.get("num_nodes", "default")
    accelerator, given = settings.get(_ACCELERATOR), settings.get(_DEVICES)
    # Whoever asks for CPUs on a host with GPUs has not asked for as many processes as there are GPUs.
    gpus = job.num_gpus if _is_open(_ACCELERATOR, accelerator) or accelerator in ("gpu", "cuda") else None
    if topology.is_external:
        yield _DEVICES, topology.local_world_size, sources["local_world_size"]
    elif gpus:
        yield _DEVICES, gpus, "SM_NUM_GPUS"
    if not job.in_container:
        return
    if job.num_gpus:
        yield _ACCELERATOR, "gpu", "SM_NUM_GPUS"
    elif job.num_gpus == 0 and not job.num_neurons:
        yield _ACCELERATOR, "cpu", "SM_NUM_GPUS"
    count = len(given) if isinstance(given, list) else _count(given)
    local = min(count or gpus, gpus) if gpus else count or 1
    processes = topology.world_size if topology.is_external else topology.num_nodes * local
    if processes is not None and processes > 1 and not job.num_neurons:
        yield "trainer.strategy", "smddp", f"{processes} processes by {topology.launcher}"
