"""Turns a job and what was said explicitly into the settings that SageMaker decides."""

from typing import Optional, Tuple

from lightning_sm._job import TrainingJob
from lightning_sm._options import SageMakerOptions
from lightning_sm._routing._channels import Consumer, route_channels, unrouted_channels
from lightning_sm._routing._outputs import FindClass, checkpoint_dir, directories, output_dir, route_outputs
from lightning_sm._routing._value import RoutedSetting, Routing, may_replace
from lightning_sm._routing._world import route_world
from lightning_sm._settings import Settings
from lightning_sm._topology import Topology

__all__ = [
    "Consumer",
    "FindClass",
    "RoutedSetting",
    "Routing",
    "build_routing",
    "checkpoint_dir",
    "may_replace",
    "output_dir",
]


def build_routing(
    job: TrainingJob,
    topology: Topology,
    settings: Settings,
    *,
    options: SageMakerOptions,
    consumer: Optional[Consumer],
    find_class: FindClass,
    namespace: str,
) -> Routing:
    """Decide every routed setting.

    Outside a container only the world of an external launcher is taken, because otherwise each of its processes would
    train alone; directories are left as they are.

    Args:
        job: The job.
        topology: The world that the launcher made.
        settings: What was said explicitly.
        options: The ``sagemaker`` group.
        consumer: The class that reads data, where there is one.
        find_class: Finds a class by the name that a config gives it.
        namespace: Lightning's namespace, for the default logger.

    Raises:
        RoutingError: It is open which parameter a channel feeds, or the channel holds no files to read.
    """
    routed = list(route_world(job, topology, settings))
    notes: Tuple[str, ...] = ()
    if job.in_container:
        routed += route_outputs(job, settings, options, find_class, namespace)
        routed += route_channels(job, settings, options, consumer)
        notes = directories(job, options) + unrouted_channels(job, options, consumer)
    implied: Tuple[Tuple[str, str], ...] = ()
    if consumer is not None and consumer.class_path is not None:
        # A config that sets arguments of a class must name the class, which may come from the command line only.
        implied = ((f"{consumer.key}.class_path", consumer.class_path),)
    return Routing(tuple(routed), notes, implied)
