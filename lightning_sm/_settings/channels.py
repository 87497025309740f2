"""Routes input channels to the parameters of the data module."""

import inspect
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.classes import init_parameters, names_a_path, takes_path
from lightning_sm._settings.given import RunContext
from lightning_sm._settings.line import plain_key
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm._settings.routed import RoutedSetting, channel_option, may_replace
from lightning_sm.errors import RoutingError

__all__ = ["Consumer", "route_channels", "unrouted_channels"]

_MAIN_CHANNELS = ("training", "train")
_MAIN_PARAMETERS = (
    "data_dir",
    "data_path",
    "data_root",
    "dataset_dir",
    "dataset_path",
    "dataset_root",
    "root",
    "root_dir",
)
# The largest number of parameters that the line about an unrouted channel suggests.
_CANDIDATES = 4
_SUFFIXES = ("dir", "path", "root", "data_dir", "data_path", "data_root", "data", "folder")
# Channels and parameters abbreviate these words differently.
_SYNONYMS = (("training", "train"), ("validation", "valid", "val"), ("testing", "test"), ("prediction", "predict"))


@dataclass(frozen=True)
class Consumer:
    """The class that reads data: the data module, or the model where there is none.

    Args:
        key: Its group, ``data`` or ``model``.
        cls: The class.
        is_named: Whether a config names the class, whose arguments then stand below ``init_args``.
    """

    key: str
    cls: type
    is_named: bool = False

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the class by name."""
        return init_parameters(self.cls)

    def full_key(self, parameter: str) -> str:
        """The key of a parameter as the saved config shows it."""
        return f"{self.key}.init_args.{parameter}" if self.is_named else f"{self.key}.{parameter}"


def route_channels(context: RunContext, consumer: Optional[Consumer]) -> Iterator[RoutedSetting]:
    """Yield a setting for each channel that feeds a parameter.

    Raises:
        RoutingError: It is ambiguous which parameter a channel feeds, or the channel holds no files to read.
    """
    job, given, options = context.job, context.given, context.options
    taken: Dict[str, str] = {}
    for name, key in _targets(job, options, consumer).items():
        if key is None or given.is_explicit(plain_key(key)):
            continue
        plain = plain_key(key)
        if plain in taken:
            raise _ambiguous(f"The channels {taken[plain]!r} and {name!r} both feed {plain}.", name, [plain])
        taken[plain] = name
        value = given.get(plain)
        if value is None and consumer is not None and plain.startswith(f"{consumer.key}."):
            value = _default(consumer, plain.rpartition(".")[2])
        if may_replace(value, job) or name in options.channels:
            job.channels[name].validate()
            source = f"channel {name!r}" + (" by sagemaker.channels" if name in options.channels else "")
            yield RoutedSetting(key, job.channels[name].path, source, *given.replaced_by_routing(plain), name)


def unrouted_channels(context: RunContext, consumer: Optional[Consumer]) -> Tuple[str, ...]:
    """The channels that feed no parameter, one line each, with the parameters that they could feed."""
    if consumer is None:
        return ()
    job, options = context.job, context.options
    targets = _targets(job, options, consumer)
    fed = {plain_key(key) for key in targets.values() if key}
    likely = [f"{consumer.key}.{name}" for name, found in consumer.parameters.items() if names_a_path(found)]
    possible = [key for key in likely if key not in fed][:_CANDIDATES]
    of_these = f" ({' or '.join(possible)})" if possible else ""
    return tuple(
        f"channel {name!r} ({job.channels[name].path}) feeds no parameter; "
        f"to choose one{of_these}, set {channel_option(name)}"
        for name, key in targets.items()
        if key is None and options.channels.get(name) != ""
    )


def _targets(job: TrainingJob, options: SageMakerOptions, consumer: Optional[Consumer]) -> Dict[str, Optional[str]]:
    """Return the key that each channel feeds, or ``None``. What somebody chose is not open to other channels."""
    unknown = sorted(set(options.channels) - set(job.channels))
    if unknown:
        raise RoutingError(
            f"sagemaker.channels names {', '.join(unknown)}, which the job has not: {', '.join(sorted(job.channels))}.",
            hint="Use the names of the job's input channels.",
        )
    chosen = {name: _chosen(key, consumer) for name, key in sorted(options.channels.items())}
    keys = {plain_key(key) for key in chosen.values() if key}
    targets = dict(chosen)
    for name in sorted(set(job.data_channels) - set(chosen)):
        targets[name] = _target(name, job, consumer, keys) if consumer is not None else None
    return targets


def _chosen(key: str, consumer: Optional[Consumer]) -> Optional[str]:
    if consumer is not None and plain_key(key).startswith(f"{consumer.key}."):
        return consumer.full_key(plain_key(key)[len(consumer.key) + 1 :])
    return key or None


def _target(name: str, job: TrainingJob, consumer: Consumer, chosen: Set[str]) -> Optional[str]:
    def is_open(parameter: str) -> bool:
        return takes_path(consumer.parameters[parameter]) and f"{consumer.key}.{parameter}" not in chosen

    own = [parameter for parameter in consumer.parameters if parameter in _own_names(name) and is_open(parameter)]
    main = name in _MAIN_CHANNELS or len(job.data_channels) == 1
    general = [parameter for parameter in consumer.parameters if parameter in _MAIN_PARAMETERS and is_open(parameter)]
    candidates = own or (general if main else [])
    if len(candidates) > 1:
        keys = [f"{consumer.key}.{parameter}" for parameter in candidates]
        raise _ambiguous(f"The channel {name!r} could feed {' or '.join(keys)}.", name, keys)
    return consumer.full_key(candidates[0]) if candidates else None


def _own_names(channel: str) -> List[str]:
    base = channel.replace("-", "_").replace(".", "_").lower()
    stems = next((synonyms for synonyms in _SYNONYMS if base in synonyms), (base,))
    return [base] + [f"{stem}_{suffix}" for stem in stems for suffix in _SUFFIXES]


def _default(consumer: Consumer, parameter: str) -> Any:
    found = consumer.parameters.get(parameter)
    return None if found is None or found.default is inspect.Parameter.empty else found.default


def _ambiguous(problem: str, channel: str, keys: List[str]) -> RoutingError:
    return RoutingError(
        problem,
        hint=f"Choose in the config, 'sagemaker: {{channels: {{{channel}: {keys[0]}}}}}', "
        f"or as a hyperparameter set {channel_option(channel)}.",
    )
