"""Routes input channels into the parameters of the data module."""

import inspect
import os
import stat
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._job import Channel, TrainingJob
from lightning_sm._options import SageMakerOptions
from lightning_sm._parameters import init_parameters
from lightning_sm._routing._value import RoutedSetting, may_replace, said
from lightning_sm._settings import Settings
from lightning_sm.errors import RoutingError

__all__ = ["Consumer", "check_channel", "route_channels", "unrouted_channels"]

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
_SUFFIXES = ("dir", "path", "root", "data_dir", "data_path", "data_root", "data", "folder")
# Channels and parameters shorten the same words differently.
_SYNONYMS = (("training", "train"), ("validation", "valid", "val"), ("testing", "test"), ("prediction", "predict"))


@dataclass(frozen=True)
class Consumer:
    """The class that reads data: the data module, or the model where there is none.

    Args:
        key: Its group, ``data`` or ``model``.
        cls: The class.
        class_path: Its full name where a config names the class, whose arguments then stand below ``init_args``.
    """

    key: str
    cls: type
    class_path: Optional[str] = None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the class by name."""
        return init_parameters(self.cls)

    def full_key(self, parameter: str) -> str:
        """The key of a parameter as the saved config shows it."""
        return f"{self.key}.init_args.{parameter}" if self.class_path else f"{self.key}.{parameter}"


def route_channels(
    job: TrainingJob, settings: Settings, options: SageMakerOptions, consumer: Optional[Consumer]
) -> Iterator[RoutedSetting]:
    """Yield a setting for each channel that feeds a parameter.

    Raises:
        RoutingError: It is open which parameter a channel feeds, or the channel holds no files to read.
    """
    taken: Dict[str, str] = {}
    for name, channel in sorted(job.data_channels.items()):
        key, why = _target(name, job, options, consumer)
        if key is None or settings.is_explicit(key.replace(".init_args", "")):
            continue
        plain = key.replace(".init_args", "")
        if plain in taken:
            raise _ambiguous(f"The channels {taken[plain]!r} and {name!r} both feed {key}.", name, [key])
        taken[plain] = name
        value = settings.get(plain)
        if value is None and consumer is not None and plain.startswith(f"{consumer.key}."):
            value = _default(consumer, plain.rpartition(".")[2])
        if may_replace(value, job) or why == "sagemaker.channels":
            check_channel(channel)
            yield RoutedSetting(key, channel.path, f"SM_CHANNEL_{name.upper()}", said(settings, plain))


def unrouted_channels(job: TrainingJob, options: SageMakerOptions, consumer: Optional[Consumer]) -> Tuple[str, ...]:
    """The channels that feed nothing, one line each, so that nobody has to guess."""
    return tuple(
        f"channel {name!r} ({channel.path}) feeds no parameter; to choose one, set sagemaker.channels.{name}"
        for name, channel in sorted(job.data_channels.items())
        if _target(name, job, options, consumer)[0] is None and options.channels.get(name) != ""
    )


def check_channel(channel: Channel) -> None:
    """Refuse a channel that holds no files.

    Raises:
        RoutingError: It is a pipe, missing or empty.
    """
    where = f"The channel {channel.name!r} at {channel.path}"
    if channel.input_mode == "Pipe" or _is_fifo(channel.path) or _is_fifo(f"{channel.path}_0"):
        raise RoutingError(
            f"{where} is a pipe, which no data module reads.", hint="Set the channel's input mode to File or FastFile."
        )
    try:
        empty = os.path.isdir(channel.path) and not os.listdir(channel.path)
    except OSError as error:
        raise RoutingError(f"{where} cannot be read ({error}).", hint="Check who may read it.") from error
    if empty or not os.path.exists(channel.path):
        raise RoutingError(
            f"{where} {'is empty' if empty else 'does not exist'}.",
            hint="Check the channel's S3 prefix: it must name at least one object.",
        )


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _target(
    name: str, job: TrainingJob, options: SageMakerOptions, consumer: Optional[Consumer]
) -> Tuple[Optional[str], str]:
    """Return the key that a channel feeds, or ``None``, and what decided so."""
    unknown = sorted(set(options.channels) - set(job.channels))
    if unknown:
        raise RoutingError(
            f"sagemaker.channels names {', '.join(unknown)}, which the job has not: {', '.join(sorted(job.channels))}.",
            hint="Use the names of the job's input channels.",
        )
    if name in options.channels:
        return options.channels[name] or None, "sagemaker.channels"
    if consumer is None:
        return None, "no data module"
    own = [parameter for parameter in consumer.parameters if parameter in _own_names(name)]
    main = name in _MAIN_CHANNELS or len(job.data_channels) == 1
    general = [parameter for parameter in consumer.parameters if parameter in _MAIN_PARAMETERS] if main else []
    candidates = own or general
    if len(candidates) > 1:
        keys = [f"{consumer.key}.{parameter}" for parameter in candidates]
        raise _ambiguous(f"The channel {name!r} could feed {' or '.join(keys)}.", name, keys)
    return (consumer.full_key(candidates[0]) if candidates else None), "its name"


def _own_names(channel: str) -> List[str]:
    base = channel.replace("-", "_").lower()
    stems = next((synonyms for synonyms in _SYNONYMS if base in synonyms), (base,))
    return [base] + [f"{stem}_{suffix}" for stem in stems for suffix in _SUFFIXES]


def _default(consumer: Consumer, parameter: str) -> Any:
    found = consumer.parameters.get(parameter)
    return None if found is None or found.default is inspect.Parameter.empty else found.default


def _ambiguous(problem: str, channel: str, keys: List[str]) -> RoutingError:
    return RoutingError(
        problem,
        hint=f"Choose in the config, 'sagemaker: {{channels: {{{channel}: {keys[0]}}}}}', "
        f"or with the hyperparameter sagemaker.channels.{channel}.",
    )
