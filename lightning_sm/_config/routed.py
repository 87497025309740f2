"""``Routing``: the settings that SageMaker determines, each with its source, as a value that can be printed."""

import copy
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.settings import Settings, as_config, plain_key
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["CheckpointRoutes", "Link", "RoutedSetting", "Routing", "is_within", "may_replace"]


@dataclass(frozen=True)
class Link:
    """An argument that the project's CLI takes from others (``parser.link_arguments``).

    Args:
        target: The key that is set.
        sources: The keys that it is taken from.
        is_copy: Whether it is the value of its only source as that was parsed.
        default: The default of the only source.
    """

    target: str
    sources: Tuple[str, ...]
    is_copy: bool
    default: Any = None


@dataclass(frozen=True)
class RoutedSetting:
    """One setting.

    Args:
        key: Where it goes, such as ``trainer.num_nodes``.
        value: What it becomes.
        source: The variable, file or option that it comes from.
        replaced: What it replaces and where that came from, for the log line.
        config: Key and value as a parser takes them, where they differ: a list of loggers can only be set as a whole.
        channel: The channel that feeds it.
        upload: The URL that the files of this directory are uploaded to while the job runs.
    """

    key: str
    value: Any
    source: str
    replaced: Optional[str] = None
    config: Optional[Tuple[str, Any]] = None
    channel: Optional[str] = None
    upload: Optional[str] = None

    @property
    def is_of_entry(self) -> bool:
        """Whether it is an argument of one of several callbacks or loggers."""
        return "[" in self.key

    def __str__(self) -> str:
        line = f"{self.key} = {self.value} ← {self.source}"
        return f"{line} ({self.replaced})" if self.replaced else line


@dataclass(frozen=True)
class Routing:
    """All routed settings of one run.

    Args:
        settings: The settings, in the order in which they are printed.
        notes: Directories of callbacks, and channels that feed no parameter, one line each.
        implied: Keys and values that a parser needs beside them.
    """

    settings: Tuple[RoutedSetting, ...] = ()
    notes: Tuple[str, ...] = ()
    implied: Tuple[Tuple[str, str], ...] = ()

    def as_config(self, *, entries: bool = True) -> Dict[str, Any]:
        """The settings as a nested config.

        Args:
            entries: Whether arguments of the entries of a list are in it, for which the list must be set as a whole.
        """
        nested: Dict[str, Any] = {}
        routed = [
            setting.config or (setting.key, setting.value)
            for setting in self.settings
            if entries or not setting.is_of_entry
        ]
        needed = [(key, value) for key, value in self.implied if any(_is_in(key, other) for other, _ in routed)]
        for key, value in [*needed, *routed]:
            node = nested
            *parents, last = key.split(".")
            for part in parents:
                node = node.setdefault(part, {})
            node[last] = value
        return nested

    def undone(self, config: Mapping[str, Any], settings: Settings) -> Dict[str, Any]:
        """Return a resolved config in which each routed setting is again what was given, or is left out.

        Args:
            config: The nested config.
            settings: What was given.
        """
        undone: Dict[str, Any] = copy.deepcopy(dict(config))
        for setting in self.settings:
            entry = re.fullmatch(r"(.+)\[(\d+)\]\.init_args\.(.+)", setting.key)
            if entry is None:
                key = setting.config[0] if setting.config else setting.key
                _put(undone, key.split("."), as_config(settings.get(plain_key(key))))
                continue
            entries, given = _at(undone, entry[1].split(".")), settings.get(entry[1])
            with suppress(IndexError, KeyError, TypeError, AttributeError):  # a list that is written in another way
                before = given[int(entry[2])] if isinstance(given, list) else given
                before = before if isinstance(before, Mapping) else {}
                _put(entries[int(entry[2])]["init_args"], [entry[3]], before.get("init_args", before).get(entry[3]))
        return undone

    @property
    def sources(self) -> Dict[str, str]:
        """What decided each setting, by its key without ``init_args``."""
        return {plain_key(setting.key): setting.source for setting in self.settings}

    @property
    def uploads(self) -> Dict[str, str]:
        """The URL that each directory is uploaded to while the job runs."""
        return {str(setting.value): setting.upload for setting in self.settings if setting.upload is not None}

    def refused_channel(self, problem: str) -> Optional[str]:
        """What to do where a parser's problem is about a parameter that a channel feeds."""
        for setting in self.settings:
            parameter = setting.key.rpartition(".")[2]
            if setting.channel is not None and re.search(rf"[\"'.]{re.escape(parameter)}[\"']", problem):
                return (
                    f"The channel {setting.channel!r} feeds {setting.key}; set sagemaker.channels.{setting.channel} "
                    "to the parameter that takes its path, or to '' for none."
                )
        return None

    @property
    def lines(self) -> Tuple[str, ...]:
        """All settings, one ``value ← source`` each, and the notes."""
        return tuple(map(str, [*self.settings, *self.notes]))

    def table(self) -> str:
        """All settings, one ``value ← source`` a line."""
        return "\n".join(["SageMaker settings:", *(f"  {line}" for line in self.lines)])

    def __bool__(self) -> bool:
        return bool(self.settings or self.notes)


def may_replace(value: Any, job: TrainingJob) -> bool:
    """Whether one of SageMaker's directories replaces a path: not if it is remote or below the base directory."""
    path = "" if value is None else os.path.expanduser(str(value))
    if "://" in path:
        return False
    base = os.path.realpath(job.base_dir or "/opt/ml")
    # The script's own folder is below the base directory, too, but is not one of SageMaker's directories.
    code = os.path.join(base, "code")
    return not os.path.isabs(path) or not _is_below(path, base) or _is_below(path, code)


class CheckpointRoutes:
    """Where the ``ModelCheckpoint`` callbacks of one trainer save instead of where they were told to.

    A directory keeps its path: relative to the working directory, or all of it where it is outside of that. So two
    directories stay two, also those of fits with trainers of their own, and each restart finds the same ones.

    Args:
        directory: The job's checkpoint directory, or a URL.
        given: The ``dirpath`` of each callback.

    Example::

        >>> routes = CheckpointRoutes("/opt/ml/checkpoints", ["checkpoints/fold0", "/data/fold0"])
        >>> routes.place("checkpoints/fold0"), routes.place("/data/fold0"), routes.place(None)
        ('/opt/ml/checkpoints/checkpoints/fold0', '/opt/ml/checkpoints/data/fold0', '/opt/ml/checkpoints')
    """

    def __init__(self, directory: str, given: Iterable[Any]) -> None:
        self.directory = directory
        within = [_real(path) for path in given if path is not None and is_within(path, directory)]
        self._sources = {path: path for path in within}

    def place(self, dirpath: Any) -> str:
        """Return the directory for a local ``dirpath``; the job's own for ``None`` and for the working directory."""
        path, here = _real("." if dirpath is None else dirpath), _real(".")
        if path == here:
            return self.directory
        if path in self._sources:
            return path
        name = os.path.relpath(path, here) if is_within(path, here) else path.lstrip("/")
        first = place = os.path.join(self.directory, name)
        number = 1
        while self._sources.setdefault(place, path) != path:  # data/x and /data/x
            number += 1
            place = f"{first}-{number}"
        return place


def is_within(path: Any, folder: str) -> bool:
    """Whether a local path is a folder, or is below it."""
    return os.path.commonpath([_real(path), _real(folder)]) == _real(folder)


def _real(path: Any) -> str:
    return os.path.realpath(os.path.expanduser(str(path)))


def _at(node: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _put(node: Dict[str, Any], keys: Sequence[str], value: Any) -> None:
    *parents, last = keys
    inner = _at(node, parents)
    if isinstance(inner, dict):
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = value


def _is_in(class_key: str, key: str) -> bool:
    return key.startswith(f"{class_key.rpartition('.')[0]}.init_args.")


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.join(folder, ""))
