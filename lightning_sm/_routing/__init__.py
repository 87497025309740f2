"""Turns a job and what was said explicitly into the settings that SageMaker decides."""

import os
from dataclasses import replace
from typing import Iterator, List, Optional, Sequence, Tuple

from lightning_sm._job import TrainingJob
from lightning_sm._options import SageMakerOptions
from lightning_sm._routing._channels import Consumer, route_channels, unrouted_channels
from lightning_sm._routing._outputs import FindClass, checkpoint_dir, directories, output_dir, route_outputs
from lightning_sm._routing._value import Link, RoutedSetting, Routing, may_replace, said
from lightning_sm._routing._world import route_world
from lightning_sm._settings import Settings
from lightning_sm._topology import Topology
from lightning_sm.errors import RoutingError

__all__ = [
    "Consumer",
    "FindClass",
    "Link",
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
    links: Sequence[Link] = (),
    trains: bool = True,
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
        links: Arguments that the parser takes from others.
        trains: Whether the run may train, so that there is something to save and to export.

    Raises:
        RoutingError: It is open which parameter a channel feeds, the channel holds no files to read, or the parameter
            is computed from other arguments.
    """
    world = route_world(job, topology, settings)
    routed: List[RoutedSetting] = [other for each in world for other in _at_source(each, links, settings, job)]
    notes: Tuple[str, ...] = ()
    if job.in_container:
        decided = [
            *route_outputs(job, settings, options, find_class, namespace),
            *route_channels(job, settings, options, consumer),
        ]
        routed += [other for each in decided for other in _at_source(each, links, settings, job)]
        saves = (
            settings.get("trainer.enable_checkpointing") is not False and settings.get("trainer.barebones") is not True
        )
        written = directories(job, options) if trains else ()
        notes = (written if saves else written[1:]) + unrouted_channels(job, options, consumer)
    # A config that sets arguments of a class must name the class, which may come from the command line only.
    implied = [
        (f"{key}.class_path", path)
        for key, path in ((key, settings.get(f"{key}.class_path")) for key in ("model", "data"))
        if isinstance(path, str)
    ]
    if consumer is not None and consumer.class_path is not None:
        implied.append((f"{consumer.key}.class_path", consumer.class_path))
    return Routing(tuple(routed), notes, tuple(implied))


def _at_source(
    setting: RoutedSetting, links: Sequence[Link], settings: Settings, job: TrainingJob
) -> Iterator[RoutedSetting]:
    """Set what a linked argument is taken from, because the link overwrites the argument itself."""
    link = next((link for link in links if _plain(link.target) == _plain(setting.key)), None)
    if link is None:
        yield setting
        return
    if any(settings.is_explicit(_plain(source)) for source in link.sources):
        return
    source = link.sources[0]
    old = settings.get(_plain(source))
    old = link.default if old is None else old
    if not link.is_copy:
        if setting.channel is not None:
            raise RoutingError(
                f"{setting.key}, which the {setting.source} would feed, is computed from {' and '.join(link.sources)}.",
                hint=f"Set {' or '.join(link.sources)} as a hyperparameter, or set "
                f"sagemaker.channels.{setting.channel} to another parameter, or to '' for none.",
            )
    elif old is None or (os.path.isabs(str(setting.value)) and may_replace(old, job)):
        yield replace(setting, key=source, replaced=said(settings, _plain(source)), config=None)


def _plain(key: str) -> str:
    return key.replace(".init_args", "")
