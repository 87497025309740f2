"""``Routing``: the settings that SageMaker determines, each with its source, as a value that can be printed."""

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.line import plain_key

__all__ = ["RoutedSetting", "Routing", "channel_option", "is_within", "may_replace"]


@dataclass(frozen=True)
class RoutedSetting:
    """One setting.

    Args:
        key: Where it goes, such as ``trainer.num_nodes``.
        value: What it becomes.
        source: The variable, file or option that it comes from.
        replaced: What it replaces and where that came from, for the log line.
        old: What it replaces.
        channel: The channel that feeds it.
        upload: The URL that the files of this directory are uploaded to while the job runs.
    """

    key: str
    value: Any
    source: str
    replaced: Optional[str] = None
    old: Any = None
    channel: Optional[str] = None
    upload: Optional[str] = None

    def __str__(self) -> str:
        line = f"{self.key} = {self.value} ← {self.source}"
        return f"{line} ({self.replaced})" if self.replaced else line


@dataclass(frozen=True)
class Routing:
    """All routed settings of one run.

    Args:
        settings: The settings, in the order in which they are printed.
        notes: Directories of callbacks, and channels that feed no parameter, one line each.
    """

    settings: Tuple[RoutedSetting, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def args(self) -> List[str]:
        """The arguments that set them on a command line."""
        return [f"--{setting.key}={setting.value}" for setting in self.settings]

    def undone(self, config: Dict[str, Any]) -> Dict[str, Any]:
        """Return a resolved config in which each routed setting is again what it was before, or is left out.

        Args:
            config: The nested config, which is changed.
        """
        for setting in self.settings:
            node: Any = config
            *parents, last = re.findall(r"[^.\[\]]+", setting.key)
            for part in parents:
                node = node[int(part)] if isinstance(node, list) else (node or {}).get(part)
            if isinstance(node, dict) and last in node:
                node[last] = setting.old
                if setting.old is None:
                    del node[last]
        return config

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
                    f"The channel {setting.channel!r} feeds {setting.key}; set {channel_option(setting.channel)} "
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


def channel_option(name: str) -> str:
    """What to set for a channel: below a dotted key a dot of its name would begin one more key."""
    return f"the key {name!r} of the mapping sagemaker.channels" if "." in name else f"sagemaker.channels.{name}"


def may_replace(value: Any, job: TrainingJob) -> bool:
    """Whether one of SageMaker's directories replaces a path: not if it is remote or below the base directory."""
    path = "" if value is None else os.path.expanduser(str(value))
    if "://" in path:
        return False
    base = os.path.realpath(job.base_dir or "/opt/ml")
    # The script's own folder is below the base directory, too, but is not one of SageMaker's directories.
    code = os.path.join(base, "code")
    return not os.path.isabs(path) or not _is_below(path, base) or is_within(path, code)


def is_within(path: Any, folder: str) -> bool:
    """Whether a local path is a folder, or is below it."""
    real, folder = (os.path.realpath(os.path.expanduser(str(each))) for each in (path, folder))
    return os.path.commonpath([real, folder]) == folder


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.join(folder, ""))
