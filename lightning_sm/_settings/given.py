"""``Given``: the values of a run and who set them; ``RunContext``: what is known of a run before its ``Trainer``."""

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm._settings.classes import find_class
from lightning_sm._settings.line import Part
from lightning_sm._settings.options import SageMakerOptions

__all__ = ["Given", "RunContext", "as_list", "as_tree", "is_several"]


@dataclass(frozen=True)
class Given:
    """The values of a run without what SageMaker determines.

    Keys are dotted and without ``init_args``, so that ``model.lr`` and ``model.init_args.lr`` are one setting.

    Args:
        values: What a parser has read at the end of the line, nested, with defaults.
        parts: Who set what, in the order in which it applies.

    Example::

        >>> given = Given({"model": {"lr": 0.5}}, (Part("a.yaml", {"model.lr": 0.1}, path="a.yaml"),))
        >>> given.get("model.lr"), given.source_of("model.lr"), given.is_explicit("model.lr")
        (0.5, 'a.yaml', False)
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[Part] = ()

    def get(self, key: str) -> Any:
        """The value, or the nested values, of a dotted key; ``None`` where there is none."""
        node: Any = self.values
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def class_path(self, group: str) -> Optional[str]:
        """The name of the class that was set for a group such as ``model``."""
        named = self.get(group)
        path = named if isinstance(named, str) else self.get(f"{group}.class_path")
        return path if isinstance(path, str) else None

    def source_of(self, key: str) -> Optional[str]:
        """Who set a key last; ``None`` where it has a default."""
        part = self._last(key)
        return None if part is None else part.source

    def is_explicit(self, key: str) -> bool:
        """Whether an argument, a hyperparameter, a variable or a script set this key last, so that it stays."""
        part = self._last(key)
        return part is not None and part.path is None

    def replaced_by_routing(self, key: str) -> Tuple[Optional[str], Any]:
        """What routing replaces at a key: for the log line, and as it was written; ``None`` where it is a default."""
        part = self._last(key)
        if part is None or part.values[key] is None:
            return None, None
        return f"replaces {part.values[key]} from {part.source}", part.values[key]

    def source_in(self, group: str, argument: str, value: str) -> Optional[str]:
        """Who gave an argument this value, in one of the classes that a group such as ``trainer.callbacks`` lists."""
        for part in reversed(self.parts):
            found = (_named(argument, {key: each}) for key, each in part.values.items() if key.startswith(group))
            if any(value in values for values in found):
                return part.source
        return None

    def explicit_texts(self, argument: str) -> FrozenSet[str]:
        """Every text that was set for this run as an argument of this name, of any class."""
        explicit = (part.values for part in self.parts if part.path is None)
        return frozenset(text for values in explicit for text in _named(argument, values))

    def _last(self, key: str) -> Optional[Part]:
        return next((part for part in reversed(self.parts) if key in part.values), None)


def _named(name: str, node: Any) -> Iterator[str]:
    """Every text of this name in nested values, whose keys may be dotted."""
    for key, inner in node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(inner, str) and str(key).rpartition(".")[2] == name:
            yield inner
        yield from _named(name, inner)


@dataclass(frozen=True)
class RunContext:
    """What is known of a run before its ``Trainer`` is made; it is read once and passed on.

    Args:
        job: The training job.
        topology: The processes that the launcher started.
        namespace: Lightning's namespace.
        given: What the run was given.
        options: The ``sagemaker`` group of the settings.
    """

    job: TrainingJob
    topology: Topology
    namespace: Namespace
    given: Given = field(default_factory=Given)
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


def as_list(value: Any) -> List[Any]:
    """Return one or several, as Lightning's arguments take them, as a list; Hydra gives several as a ``ListConfig``."""
    return [] if value is None else list(value) if is_several(value) else [value]


def is_several(value: Any) -> bool:
    """Whether the value of an argument that takes one or several is several."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def as_tree(node: Any) -> Any:
    """Return a parser's values as nested mappings with a class's arguments beside its ``class_path``."""
    if not isinstance(node, Mapping) and not hasattr(node, "as_dict"):
        return node
    tree: Dict[str, Any] = {}
    for name, value in (node if isinstance(node, Mapping) else vars(node)).items():
        inner = as_tree(value)
        tree.update(inner if name == "init_args" and isinstance(inner, dict) else {str(name): inner})
    return tree
