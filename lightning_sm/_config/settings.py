"""``Settings``: the values that a run was given, and the provenance of each; ``RunContext``: what is known of a run."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._config.classes import find_class
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["Layer", "Provenance", "RunContext", "Settings", "as_config", "as_tree", "leaves", "plain_key"]

_ENTRY = re.compile(r"(.+)\[(\d+)\]")
# What jsonargparse keeps beside the values.
_META = ("__path__", "__orig__", "__default_config__")


class Layer(str, Enum):
    """A kind of source of settings; a later one replaces what an earlier one set."""

    PROJECT = "the project's default"
    CONFIG = "a config file"
    VARIABLE = "a variable"
    HYPERPARAMETER = "a hyperparameter"
    COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class Provenance:
    """Who set a value.

    Args:
        layer: The kind of source.
        name: The config file or the environment variable, where it is known.

    Example::

        >>> str(Provenance(Layer.CONFIG, "config.yaml")), str(Provenance(Layer.COMMAND_LINE))
        ('config.yaml', 'the command line')
    """

    layer: Layer
    name: str = ""

    @property
    def is_explicit(self) -> bool:
        """Whether the value was set for this run, so that nothing may replace it."""
        return self.layer in (Layer.COMMAND_LINE, Layer.HYPERPARAMETER, Layer.VARIABLE)

    def __str__(self) -> str:
        if not self.name:
            return self.layer.value
        return f"the variable {self.name}" if self.layer is Layer.VARIABLE else self.name


@dataclass(frozen=True)
class Settings:
    """Everything that was given to a run, without the defaults of classes.

    Keys are dotted, such as ``trainer.max_epochs``. The ``init_args`` of a class count as its own keys, so that
    ``model.lr`` and ``model.init_args.lr`` are one setting.

    Args:
        tree: The values, nested.
        provenance: Who set each leaf, by its dotted key.

    Example::

        >>> config = {"model": {"class_path": "net.Net", "init_args": {"lr": 0.1}}}
        >>> settings = Settings().with_layer(config, Provenance(Layer.CONFIG, "config.yaml"))
        >>> settings = settings.with_layer({"model": {"lr": 0.5}}, Provenance(Layer.HYPERPARAMETER))
        >>> settings.get("model.lr"), str(settings.provenance_of("model.lr"))
        (0.5, 'a hyperparameter')
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def with_layer(self, values: Mapping[str, Any], provenance: Provenance) -> "Settings":
        """Return the settings with nested values over them; a class that another one replaces loses its arguments."""
        # An empty group sets nothing.
        layer = {name: value for name, value in as_tree(values).items() if value != {} or name not in self.tree}
        given = {key for key, _ in leaves(layer)}
        tree = _merged(self.tree, layer)
        found: Dict[str, Provenance] = {}
        for key, _ in leaves(tree):
            whole = key[: -len(".class_path")] if key.endswith(".class_path") else key
            earlier = self.provenance.get(key) or self.provenance.get(whole) or provenance
            found[key] = provenance if given & {key, whole} else earlier
        return Settings(tree, found)

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

    def class_path(self, group: str) -> Optional[str]:
        """The name of the class that was set for a group such as ``model``."""
        named = self.get(group)
        path = named if isinstance(named, str) else self.get(f"{group}.class_path")
        return path if isinstance(path, str) else None

    def provenance_of(self, key: str) -> Optional[Provenance]:
        """Who set a key, or set a whole that holds it; ``None`` where nobody did.

        A class that was set by its name alone leaves its arguments open. What an entry of a list is given counts as
        its own key, such as ``trainer.callbacks[0].dirpath``, where it is known who gave it.
        """
        if key in self.provenance:
            return self.provenance[key]
        entry = _ENTRY.match(key)
        if entry:
            return self.provenance_of(entry[1]) if isinstance(self.get(entry[1]), list) else None
        whole = key.rpartition(".")[0]
        while whole:
            if whole in self.provenance:
                return None if isinstance(self.get(whole), str) else self.provenance[whole]
            whole = whole.rpartition(".")[0]
        return None

    def is_explicit(self, key: str) -> bool:
        """Whether a person, a hyperparameter or a variable set this key, so that nothing may replace it."""
        provenance = self.provenance_of(key)
        return provenance is not None and provenance.is_explicit

    def replaced_by_routing(self, key: str) -> Optional[str]:
        """What routing replaces at a key, for the log line; ``None`` where nothing was set."""
        value, provenance = self.get(key), self.provenance_of(key)
        return None if value is None or provenance is None else f"replaces {value} from {provenance}"


@dataclass(frozen=True)
class RunContext:
    """What is known of a run before its ``Trainer`` is made; it is read once and passed on.

    Args:
        job: The training job.
        topology: The processes that the launcher started.
        namespace: Lightning's namespace.
        settings: What the run was given.
        options: The ``sagemaker`` group of the settings.
    """

    job: TrainingJob
    topology: Topology
    namespace: Namespace
    settings: Settings = field(default_factory=Settings)
    options: SageMakerOptions = field(default_factory=SageMakerOptions)

    def find_class(self, name: str) -> Optional[type]:
        """Find a class by the name that a config gives it, or return ``None``."""
        return find_class(self.namespace, name)

    @property
    def output_dir(self) -> Tuple[str, str]:
        """Where loggers write, and which option, variable or default names it."""
        return self._directory("output_dir", "output_data_dir")

    @property
    def checkpoint_dir(self) -> Tuple[str, str]:
        """Where checkpoints go, and which option, file, variable or default names it."""
        return self._directory("checkpoint_dir", "checkpoint_dir")

    @property
    def model_dir(self) -> Tuple[str, str]:
        """Where the trained model goes, and which option, variable or default names it."""
        return self._directory("model_dir", "model_dir")

    def _directory(self, option: str, part: str) -> Tuple[str, str]:
        chosen = getattr(self.options, option)
        if chosen:
            return chosen, f"sagemaker.{option}"
        return str(getattr(self.job, part)), self.job.sources.get(part, "SageMaker's layout")


def as_tree(node: Any) -> Any:
    """Return a config, or a parser's values, as nested mappings with a class's arguments beside its ``class_path``."""
    if isinstance(node, (list, tuple)):
        return [_as_entry(inner) for inner in node]
    items = _items(node)
    if items is None:
        return node
    tree: Dict[str, Any] = {}
    for name, value in items:
        inner = as_tree(value)
        if name == "init_args" and isinstance(inner, dict):
            tree.update(inner)
        else:
            tree[name] = inner
    return tree


def as_config(node: Any) -> Any:
    """Return a part of a tree as a parser takes it, each class with its arguments below ``init_args``."""
    if not isinstance(node, Mapping):
        return node
    inner = {name: as_config(value) for name, value in node.items()}
    if not isinstance(inner.get("class_path"), str):
        return inner
    beside = {name: inner.pop(name) for name in ("class_path", "dict_kwargs") if name in inner}
    return {**beside, "init_args": inner}


def leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield each dotted key of a tree that holds a value, with the value."""
    for name, value in tree.items():
        key = f"{at}.{name}" if at else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        elif at or value != {}:
            yield key, value


def plain_key(key: str) -> str:
    """A key without ``init_args``."""
    return key.replace(".init_args", "")


def _as_entry(node: Any) -> Any:
    if isinstance(node, (list, tuple)):
        return [_as_entry(inner) for inner in node]
    items = _items(node)
    return node if items is None else {name: _as_entry(value) for name, value in items}


def _items(node: Any) -> Optional[List[Tuple[str, Any]]]:
    """The named values of a mapping, or of the parser's namespace; ``None`` for a value."""
    if not isinstance(node, Mapping) and not hasattr(node, "as_dict"):
        return None
    named = node if isinstance(node, Mapping) else node.as_dict()
    return [(str(name), value) for name, value in named.items() if name not in _META]


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        merged[name] = _replaced(merged.get(name), value)
    return merged


def _replaced(old: Any, value: Any) -> Any:
    if isinstance(value, Mapping) and value:
        old = {"class_path": old} if isinstance(old, str) else old
        if not isinstance(old, Mapping) or _is_other_class(old, value.get("class_path")):
            return dict(value)
        return _merged(old, value)
    if isinstance(value, str) and isinstance(old, Mapping) and "class_path" in old and not _is_other_class(old, value):
        return {**old, "class_path": value}
    return value


def _is_other_class(node: Mapping[str, Any], class_path: Any) -> bool:
    """Whether a node belongs to another class, so that its arguments do not apply."""
    named = node.get("class_path")
    if not isinstance(named, str) or class_path is None:
        return False
    return named.rpartition(".")[2] != str(class_path).rpartition(".")[2]
