"""Routes the world that the launcher made into the trainer's settings."""

from typing import Any, Iterator, Tuple

from lightning_sm._job import TrainingJob
from lightning_sm._routing._value import RoutedSetting
from lightning_sm._settings import Settings
from lightning_sm._topology import Launcher, Topology

__all__ = ["route_world"]


def route_world(job: TrainingJob, topology: Topology, settings: Settings) -> Iterator[RoutedSetting]:
    """Yield ``num_nodes``, ``devices``, ``accelerator`` and ``strategy`` as far as nobody set them."""
    for key, value, source in _world(job, topology):
        if value is not None and settings.get(key) is None and not settings.is_opaque(key):
            yield RoutedSetting(key, value, source)


def _world(job: TrainingJob, topology: Topology) -> Iterator[Tuple[str, Any, str]]:
    if topology.launcher == Launcher.LOCAL:
        return
    sources = topology.sources
    yield "trainer.num_nodes", topology.num_nodes, sources.get("num_nodes", "default")
    if topology.is_external:
        yield "trainer.devices", topology.local_world_size, sources["local_world_size"]
    elif job.num_gpus:
        yield "trainer.devices", job.num_gpus, "SM_NUM_GPUS"
    if not job.in_container:
        return
    if job.num_gpus:
        yield "trainer.accelerator", "gpu", "SM_NUM_GPUS"
    elif job.num_gpus == 0 and not job.num_neurons:
        yield "trainer.accelerator", "cpu", "SM_NUM_GPUS"
    processes = topology.world_size if topology.is_external else topology.num_nodes * (job.num_gpus or 1)
    if processes is not None and processes > 1 and not job.num_neurons:
        yield "trainer.strategy", "smddp", f"{processes} processes by {topology.launcher}"
