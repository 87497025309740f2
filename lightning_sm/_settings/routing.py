"""Determines the routed settings of a config: the number of processes, the root directory and channels."""

import os
from dataclasses import dataclass, replace
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._distributed.neuron import NEURON, XLA, installed_neuron_accelerator
from lightning_sm._lightning.namespaces import has_base
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings.channels import Consumer, route_channels, unrouted_channels
from lightning_sm._settings.classes import STRATEGY, import_class
from lightning_sm._settings.given import Given, RunContext, as_list, as_tree, is_several
from lightning_sm._settings.line import plain_key
from lightning_sm._settings.routed import RoutedSetting, Routing, channel_option, may_replace
from lightning_sm._settings.strategies import strategy_sizes
from lightning_sm.errors import RoutingError

__all__ = ["Link", "build_routing", "route_world"]

_NODES, _DEVICES, _ACCELERATOR = "trainer.num_nodes", "trainer.devices", "trainer.accelerator"
_ROOT = "trainer.default_root_dir"
# What LightningCLI writes with --print_config where nothing was set (None up to 1.9), and "all there are".
_OPEN = {_NODES: (1, "1"), _DEVICES: (-1, "-1")}


@dataclass(frozen=True)
class Link:
    """An argument that the project's CLI takes from others (``parser.link_arguments``).

    Args:
        target: The key that is set.
        sources: The keys that it is taken from.
        is_copy: Whether it is the value of its only source as that was parsed.
    """

    target: str
    sources: Tuple[str, ...]
    is_copy: bool


def route_world(context: RunContext) -> Iterator[RoutedSetting]:
    """Yield ``num_nodes``, ``devices``, ``accelerator`` and ``strategy`` as far as they are not set.

    ``auto`` and the defaults that ``--print_config`` prints count as not set. Numbers of hosts or devices in a config
    file that this job does not have are replaced, too: a config that another job saved holds that job's world size.

    Raises:
        TopologyError: The command line, a hyperparameter or a program asks for another number of hosts or processes.
    """
    job, topology, given = context.job, context.topology, context.given
    for key, value, source in _world(job, topology, given):
        old = given.get(key)
        if not _is_open(key, old):
            if given.is_explicit(key):
                _refuse_other(key, old, topology, given)
                continue
            if not _is_replaced(key, old, value, topology):
                continue
        if given.source_of(key) is None or old not in (value, str(value)):
            yield RoutedSetting(key, value, source, *given.replaced_by_routing(key))
    yield from strategy_sizes(context, _processes(job, topology, given))


def _is_open(key: str, value: Any) -> bool:
    return value is None or (isinstance(value, (str, int)) and (value == "auto" or value in _OPEN.get(key, ())))


def _refuse_other(key: str, value: Any, topology: Topology, given: Given) -> None:
    """Raise an error for a number that was set for this run and differs from the job's."""
    expected = {_NODES: topology.num_nodes, _DEVICES: topology.local_world_size}.get(key)
    count = _count(value)
    if None not in (expected, count) and count != expected:
        topology.refuse(f"{given.source_of(key)} sets {key.partition('.')[2]}={value}")


def _is_replaced(key: str, old: Any, value: Any, topology: Topology) -> bool:
    """Whether the world that a config file asks for does not exist here. A list of devices is kept."""
    if key == _NODES:
        return True
    count = _count(old)
    return key == _DEVICES and count is not None and (topology.is_external or count > value)


def _count(value: Any) -> Optional[int]:
    """The number of devices or hosts that is asked for, where it is a number."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _world(job: TrainingJob, topology: Topology, given: Given) -> Iterator[Tuple[str, Any, str]]:
    if topology.launcher == Launcher.LOCAL:
        return
    sources = topology.sources
    yield _NODES, topology.num_nodes, sources.get("num_nodes", "default")
    most, source = _most_devices(job, given), job.sources.get("num_gpus", "default")
    if topology.is_external:
        yield _DEVICES, topology.local_world_size, sources["local_world_size"]
    elif most is not None and (job.num_gpus or given.get(_DEVICES) not in (None, "auto")):
        yield _DEVICES, most, source
    if not job.in_container:
        return
    if job.num_neurons and not job.num_gpus:
        yield from _neuron_cores(given)
        return
    if job.num_gpus is not None:
        yield _ACCELERATOR, "gpu" if job.num_gpus else "cpu", source
    processes = _processes(job, topology, given)
    if processes is not None and processes > 1 and not _brings_environment(given):
        yield STRATEGY, "smddp", f"{processes} processes by {topology.launcher}"


def _brings_environment(given: Given) -> bool:
    """Whether a plugin is the project's own cluster environment, which a strategy of ours would not use."""
    found = [as_tree(each) for each in as_list(given.get("trainer.plugins"))]
    classes = (import_class(str(each.get("class_path"))) if isinstance(each, dict) else type(each) for each in found)
    return any(has_base(cls, "ClusterEnvironment") for cls in classes)


def _neuron_cores(given: Given) -> Iterator[Tuple[str, Any, str]]:
    """Accelerator and strategy for NeuronCores, also for one of them, on which Lightning's own strategy does not train.

    Nothing where the image has no software for them, or where the program brings a strategy for them along.
    """
    found, strategy = installed_neuron_accelerator(), given.get(STRATEGY)
    if found is None or getattr(strategy, "_accelerator", None) is not None:
        return
    fitting = {NEURON: "smddp", XLA: XLA}[found]
    if found == NEURON or _is_open(STRATEGY, strategy) or strategy == fitting:
        yield _ACCELERATOR, found, "SM_NUM_NEURONS"
    if _is_open(_ACCELERATOR, given.get(_ACCELERATOR)) or given.get(_ACCELERATOR) == found:
        yield STRATEGY, fitting, "SM_NUM_NEURONS"


def _most_devices(job: TrainingJob, given: Given) -> Optional[int]:
    """The GPUs of this host, or one process on its CPUs, as Lightning starts there.

    ``None`` where Lightning decides: whoever asks for CPUs has not asked for as many processes as there are GPUs, and
    may ask for several.
    """
    accelerator = given.get(_ACCELERATOR)
    takes_gpus = _is_open(_ACCELERATOR, accelerator) or accelerator in ("gpu", "cuda")
    if not takes_gpus or job.num_gpus is None or (job.num_neurons and not job.num_gpus):
        return None
    return max(job.num_gpus, 1)


def _processes(job: TrainingJob, topology: Topology, given: Given) -> Optional[int]:
    """The number of processes that train; ``None`` where Lightning alone decides."""
    if topology.launcher == Launcher.LOCAL:
        return None
    if topology.is_external:
        return topology.world_size
    devices, most = given.get(_DEVICES), _most_devices(job, given)
    count = (len(devices) if is_several(devices) else _count(devices)) or most or 1
    return topology.num_nodes * (count if most is None or given.is_explicit(_DEVICES) else min(count, most))


def build_routing(
    context: RunContext, *, consumer: Optional[Consumer] = None, links: Sequence[Link] = (), trains: bool = True
) -> Routing:
    """Determine every routed setting but those of loggers and callbacks.

    Outside a container only the world of an external launcher is taken, because otherwise each of its processes would
    train alone; directories are left as they are.

    Args:
        context: The run, with what it was given and its options.
        consumer: The class that reads data, where there is one.
        links: Arguments that the parser takes from others.
        trains: Whether the run may train, so that there is something to save and to export.

    Raises:
        RoutingError: It is ambiguous which parameter a channel feeds, the channel holds no files to read, or the
            parameter is computed from other arguments.
        TopologyError: The run asks for another number of hosts or processes than the job has.
    """
    job, given = context.job, context.given
    decided = list(route_world(context))
    notes: List[str] = []
    if job.in_container:
        if not given.is_explicit(_ROOT) and may_replace(given.get(_ROOT), job):
            decided.append(RoutedSetting(_ROOT, *context.output_dir, *given.replaced_by_routing(_ROOT)))
        decided += route_channels(context, consumer)
        saves = given.get("trainer.enable_checkpointing") is not False and given.get("trainer.barebones") is not True
        notes += [*(_directories(context, saves) if trains else ()), *unrouted_channels(context, consumer)]
    routed = (other for each in decided for other in _at_source(each, links, given, job))
    return Routing(tuple(routed), tuple(notes))


def _directories(context: RunContext, saves: bool) -> Iterator[str]:
    """Where callbacks write that no setting names, one line each."""
    if saves:
        yield "checkpoints in {} ← {}".format(*context.checkpoint_dir)
    if context.options.export:
        yield "trained model in {} ← {}".format(*context.model_dir)


def _at_source(
    setting: RoutedSetting, links: Sequence[Link], given: Given, job: TrainingJob
) -> Iterator[RoutedSetting]:
    """Set what a linked argument is taken from, because the link overwrites the argument itself."""
    link = next((link for link in links if plain_key(link.target) == plain_key(setting.key)), None)
    if link is None:
        yield setting
        return
    if any(given.is_explicit(plain_key(source)) for source in link.sources):
        return
    source = link.sources[0]
    old = given.get(plain_key(source))
    if not link.is_copy:
        if setting.channel is not None:
            raise RoutingError(
                f"{setting.key}, which the {setting.source} would feed, is computed from {' and '.join(link.sources)}.",
                hint=f"Set {' or '.join(link.sources)} as a hyperparameter, or set "
                f"{channel_option(setting.channel)} to another parameter, or to '' for none.",
            )
    elif old is None or (os.path.isabs(str(setting.value)) and may_replace(old, job)):
        replaced, value = given.replaced_by_routing(plain_key(source))
        yield replace(setting, key=source, replaced=replaced, old=value)
