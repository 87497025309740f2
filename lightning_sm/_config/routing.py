"""Determines the routed settings: the number of processes, directories and channels."""

import os
from dataclasses import replace
from typing import Any, Iterator, Optional, Sequence, Tuple

from lightning_sm._config.classes import STRATEGY
from lightning_sm._config.directories import Consumer, directories, route_channels, unrouted_channels
from lightning_sm._config.mlflow import mlflow_notes, route_mlflow
from lightning_sm._config.outputs import route_outputs
from lightning_sm._config.routed import Link, RoutedSetting, Routing, may_replace
from lightning_sm._config.settings import RunContext, Settings, plain_key
from lightning_sm._config.strategies import strategy_sizes
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import RoutingError

__all__ = ["build_routing", "route_world"]

_NODES, _DEVICES, _ACCELERATOR = "trainer.num_nodes", "trainer.devices", "trainer.accelerator"
# What LightningCLI writes with --print_config where nothing was set (None up to 1.9), and "all there are".
_OPEN = {_NODES: (1, "1"), _DEVICES: (-1, "-1")}


def route_world(context: RunContext) -> Iterator[RoutedSetting]:
    """Yield ``num_nodes``, ``devices``, ``accelerator`` and ``strategy`` as far as they are not set.

    ``auto`` and the defaults that ``--print_config`` prints count as not set. Numbers of hosts or devices in a config
    file that this job does not have are replaced, too: a config that another job saved holds that job's world size.

    Raises:
        TopologyError: The command line, a hyperparameter or a program asks for another number of hosts or processes.
    """
    job, topology, settings = context.job, context.topology, context.settings
    for key, value, source in _world(job, topology, settings):
        given = settings.get(key)
        if value is None:
            continue
        if not _is_open(key, given):
            if settings.is_explicit(key):
                _refuse_other(key, given, topology, settings)
                continue
            if not _is_replaced(key, given, topology, job):
                continue
        if given is None or given not in (value, str(value)):
            yield RoutedSetting(key, value, source, settings.replaced_by_routing(key))
    yield from strategy_sizes(context, _processes(job, topology, settings))


def _is_open(key: str, given: Any) -> bool:
    return given is None or (isinstance(given, (str, int)) and (given == "auto" or given in _OPEN.get(key, ())))


def _refuse_other(key: str, given: Any, topology: Topology, settings: Settings) -> None:
    """Raise an error for a number that was set for this run and differs from the job's."""
    expected = {_NODES: topology.num_nodes, _DEVICES: topology.local_world_size}.get(key)
    count = _count(given)
    if None not in (expected, count) and count != expected:
        topology.refuse(f"{settings.provenance_of(key)} sets {key.partition('.')[2]}={given}")


def _is_replaced(key: str, given: Any, topology: Topology, job: TrainingJob) -> bool:
    """Whether the world that a config file asks for does not exist here. A list of devices is kept."""
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
    gpus = _gpus(job, settings)
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
    processes = _processes(job, topology, settings)
    if processes is not None and processes > 1 and not job.num_neurons:
        yield "trainer.strategy", "smddp", f"{processes} processes by {topology.launcher}"


def _gpus(job: TrainingJob, settings: Settings) -> Optional[int]:
    """The GPUs that are used: whoever asks for CPUs has not asked for as many processes as there are GPUs."""
    accelerator = settings.get(_ACCELERATOR)
    return job.num_gpus if _is_open(_ACCELERATOR, accelerator) or accelerator in ("gpu", "cuda") else None


def _processes(job: TrainingJob, topology: Topology, settings: Settings) -> Optional[int]:
    """The number of processes that train; ``None`` where Lightning alone decides."""
    if topology.launcher == Launcher.LOCAL:
        return None
    if topology.is_external:
        return topology.world_size
    given, gpus = settings.get(_DEVICES), _gpus(job, settings)
    count = len(given) if isinstance(given, list) else _count(given)
    return topology.num_nodes * (min(count or gpus, gpus) if gpus else count or 1)


def build_routing(
    context: RunContext, *, consumer: Optional[Consumer] = None, links: Sequence[Link] = (), trains: bool = True
) -> Routing:
    """Determine every routed setting.

    Outside a container only the world of an external launcher is taken, because otherwise each of its processes would
    train alone; directories are left as they are.

    Args:
        context: The run, with its settings and options.
        consumer: The class that reads data, where there is one.
        links: Arguments that the parser takes from others.
        trains: Whether the run may train, so that there is something to save and to export.

    Raises:
        RoutingError: It is ambiguous which parameter a channel feeds, the channel holds no files to read, or the
            parameter is computed from other arguments.
        LoggerError: MLflow or an upload of logs cannot be used as it is set, or lacks a package.
        TopologyError: The run asks for another number of hosts or processes than the job has.
    """
    settings = context.settings
    decided = list(route_world(context))
    notes: Tuple[str, ...] = ()
    if context.job.in_container:
        decided += [*route_mlflow(context, list(route_outputs(context))), *route_channels(context, consumer)]
        saves = (
            settings.get("trainer.enable_checkpointing") is not False and settings.get("trainer.barebones") is not True
        )
        written = directories(context) if trains else ()
        notes = (written if saves else written[1:]) + mlflow_notes(context) + unrouted_channels(context, consumer)
    routed = [other for each in decided for other in _at_source(each, links, settings, context.job)]
    # A config that sets arguments of a class must name the class, which may come from the command line only.
    implied = [
        (f"{key}.class_path", path)
        for key, path in ((key, settings.get(f"{key}.class_path")) for key in ("model", "data", STRATEGY))
        if isinstance(path, str)
    ]
    if consumer is not None and consumer.class_path is not None:
        implied.append((f"{consumer.key}.class_path", consumer.class_path))
    return Routing(tuple(routed), notes, tuple(implied))


def _at_source(
    setting: RoutedSetting, links: Sequence[Link], settings: Settings, job: TrainingJob
) -> Iterator[RoutedSetting]:
    """Set what a linked argument is taken from, because the link overwrites the argument itself."""
    link = next((link for link in links if plain_key(link.target) == plain_key(setting.key)), None)
    if link is None:
        yield setting
        return
    if any(settings.is_explicit(plain_key(source)) for source in link.sources):
        return
    source = link.sources[0]
    old = settings.get(plain_key(source))
    old = link.default if old is None else old
    if not link.is_copy:
        if setting.channel is not None:
            raise RoutingError(
                f"{setting.key}, which the {setting.source} would feed, is computed from {' and '.join(link.sources)}.",
                hint=f"Set {' or '.join(link.sources)} as a hyperparameter, or set "
                f"sagemaker.channels.{setting.channel} to another parameter, or to '' for none.",
            )
    elif old is None or (os.path.isabs(str(setting.value)) and may_replace(old, job)):
        yield replace(setting, key=source, replaced=settings.replaced_by_routing(plain_key(source)), config=None)
