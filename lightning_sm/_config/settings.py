"""``Settings``: what was said explicitly, by whom, as one tree of values."""

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.config_files import load_config, merge, nest, read_value

__all__ = ["COMMAND_LINE", "CONFIG", "HYPERPARAMETER", "PROJECT", "VARIABLE", "Settings"]

COMMAND_LINE = "the command line"
HYPERPARAMETER = "a hyperparameter"
PROJECT = "the project's default"
CONFIG = "a config file"
# Begins the name of an environment variable that LightningCLI reads (``default_env=True``).
VARIABLE = "the variable "

_ENTRY = re.compile(r"(.+)\[(\d+)\]")


@dataclass(frozen=True)
class Settings:
    """Everything that config files, hyperparameters and the command line set, the later over the earlier.

    Keys are dotted, such as ``trainer.max_epochs``. The ``init_args`` of a class are counted as its own keys, so that
    ``model.lr`` and ``model.init_args.lr`` are one setting. Class defaults are not in it.

    Args:
        tree: The values, nested.
        origins: Who set each leaf, by its dotted key.
        opaque: Keys that were set in a way that cannot be followed here (``--trainer.callbacks+=…``).
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    opaque: Tuple[str, ...] = ()

    @classmethod
    def collect(
        cls,
        configs: Sequence[str] = (),
        hyperparameters: Optional[Mapping[str, Any]] = None,
        typed: Sequence[str] = (),
        subcommand: Optional[str] = None,
        *,
        defaults: Optional[Mapping[str, Any]] = None,
        given: Optional[Mapping[str, Any]] = None,
        listed: Sequence[str] = (),
    ) -> "Settings":
        """Gather the settings of one run.

        Args:
            configs: Paths of YAML or JSON files, in the order in which they apply.
            hyperparameters: Nested values.
            typed: Words of the command line, without subcommand and config files.
            subcommand: The subcommand, whose own section of a config file applies as well.
            defaults: What the project itself sets first, by dotted keys.
            given: What a program gives instead of typed words.
            listed: Words for hyperparameters that set an argument of the last of several classes.

        Raises:
            HyperparameterError: A file is missing or is no mapping.
        """
        tree: Dict[str, Any] = {}
        origins: Dict[str, str] = {}
        opaque: List[str] = []
        merge(tree, origins, nest(defaults or {}), PROJECT)
        for path in configs:
            content = load_config(path)
            section = content.pop(subcommand, None) if subcommand is not None else None
            for part in (content, section):
                if isinstance(part, dict):
                    merge(tree, origins, nest(part), os.path.basename(path), os.path.dirname(path))
        merge(tree, origins, hyperparameters or {}, HYPERPARAMETER)
        for words, origin in ((listed, HYPERPARAMETER), (typed, COMMAND_LINE)):
            for key, value in _read_words(words):
                if key.endswith("+"):
                    opaque.append(key[:-1])
                else:
                    merge(tree, origins, nest({key: value}), origin)
        merge(tree, origins, nest(given or {}), COMMAND_LINE)
        return cls(tree, origins, tuple(opaque))

    def get(self, key: str) -> Any:
        """The value, or the nested values, of a dotted key; ``None`` where nobody set it."""
        node: Any = self.tree
        for part in key.split("."):
            entry = _ENTRY.fullmatch(part)
            name = entry[1] if entry else part
            if not isinstance(node, Mapping) or name not in node:
                return None
            node = node[name]
            if entry:
                node = node[int(entry[2])] if isinstance(node, list) and int(entry[2]) < len(node) else None
                node = {**node, **(node.get("init_args") or {})} if isinstance(node, Mapping) else node
        return node

    def origin(self, key: str) -> Optional[str]:
        """Who set a key, or set a whole that holds it; ``None`` where nobody did.

        A class that was set by its name alone leaves its arguments open. What an entry of a list is given counts as
        its own key, such as ``trainer.callbacks[0].dirpath``, where it is known who gave it.
        """
        if key in self.origins:
            return self.origins[key]
        entry = _ENTRY.match(key)
        if entry:
            return self.origin(entry[1]) if isinstance(self.get(entry[1]), list) else None
        whole = key.rpartition(".")[0]
        while whole:
            if whole in self.origins:
                return None if isinstance(self.get(whole), str) else self.origins[whole]
            whole = whole.rpartition(".")[0]
        return None

    def is_explicit(self, key: str) -> bool:
        """Whether a person, a hyperparameter or a variable set this key, so that nothing may replace it."""
        origin = self.origin(key)
        return origin in (COMMAND_LINE, HYPERPARAMETER) or str(origin).startswith(VARIABLE) or self.is_opaque(key)

    def is_opaque(self, key: str) -> bool:
        """Whether this key, or a whole that holds it, was set in a way that cannot be followed."""
        return any(key == other or key.startswith(f"{other}.") for other in self.opaque)


def _read_words(words: Sequence[str]) -> List[Tuple[str, Any]]:
    """Read ``--key=value`` and ``--key value``; words that are neither are the parser's business."""
    read: List[Tuple[str, Any]] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        key, equals, text = word[2:].partition("=")
        if not equals:
            if index >= len(words) or words[index].startswith("--"):
                continue
            text = words[index]
            index += 1
        read.append((key, read_value(text)))
    return read
