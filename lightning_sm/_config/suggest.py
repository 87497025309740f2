"""Names the real key that somebody probably meant."""

import difflib
from typing import Any, Callable, Iterator, List, Mapping, Optional

from lightning_sm._config.classes import init_parameters
from lightning_sm._config.settings import Layer, Settings

__all__ = ["closest_keys", "ignored_names"]

# What scripts that know no LightningCLI call it.
_USUAL_NAMES = {
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "n_epochs": "max_epochs",
    "steps": "max_steps",
    "gpus": "devices",
    "num_gpus": "devices",
    "learning_rate": "lr",
    "lr": "learning_rate",
    "seed": "seed_everything",
}


def closest_keys(
    parser: Any,
    tree: Mapping[str, Any],
    given: Mapping[str, Any],
    find_class: Callable[[str], Optional[type]],
) -> Optional[str]:
    """Return a hint for each key that was set and that neither the parser nor a named class knows.

    Args:
        parser: The argument parser of the run's subcommand.
        tree: What was given, nested.
        given: Who set each key.
        find_class: Finds a class by the name that a config gives it.
    """
    known = sorted(_known_keys(parser, tree, find_class))
    hints: List[str] = []
    for key, source in given.items():
        if key in known or _is_part(known, key):
            continue
        possible = [other for other in known if not key.startswith(f"{other}.")]
        near = _nearest(key, possible)
        if near:
            hints.append(f"{key!r} (by {source}) is no key; did you mean {near[0]!r}?")
    return " ".join(hints) or None


def ignored_names(parser: Any, settings: Settings) -> Optional[str]:
    """Return a hint where hyperparameters without a dot are no keys, which a script may read by itself."""
    known = {str(action.dest).partition(".")[0] for action in parser._actions}
    given = [key for key, source in settings.provenance.items() if source.layer is Layer.HYPERPARAMETER]
    plain = [name for name in given if name not in known and "." not in name]
    return (
        f"A hyperparameter that the script itself reads belongs into ignore_hyperparameters={plain}." if plain else None
    )


def _nearest(key: str, possible: List[str]) -> List[str]:
    """The likeliest key: one that ends alike, with the group that was named, comes before all others."""
    last = _last(key)
    abbreviated = [other for other in possible if other.startswith(key)]
    for alike in (last, _USUAL_NAMES.get(last)):
        same = [other for other in possible if _last(other) == alike]
        if same:
            # Settings of the model are what scripts name without a group.
            same.sort(key=lambda other: (-_likeness(key, other), not other.startswith("model."), other))
            return same[:1]
    return difflib.get_close_matches(key, abbreviated or possible, n=1, cutoff=0.5) or abbreviated


def _last(key: str) -> str:
    return key.rpartition(".")[2].replace("-", "_")


def _likeness(key: str, other: str) -> float:
    group = key.rpartition(".")[0]
    return difflib.SequenceMatcher(None, group, other.rpartition(".")[0]).ratio() if group else 0.0


def _known_keys(parser: Any, tree: Mapping[str, Any], find_class: Callable[[str], Optional[type]]) -> Iterator[str]:
    yield from (str(action.dest) for action in parser._actions if not str(action.dest).endswith(".help"))
    yield from _class_keys(tree, "", find_class)


def _class_keys(node: Mapping[str, Any], at: str, find_class: Callable[[str], Optional[type]]) -> Iterator[str]:
    """The parameters of each class that the settings name."""
    for name, value in node.items():
        key = f"{at}.{name}" if at else name
        path = value.get("class_path") if isinstance(value, Mapping) else None
        if isinstance(path, str):
            cls = find_class(path)
            if cls is not None:  # else every key below is as good as any other
                yield f"{key}.class_path"
                yield from (f"{key}.{parameter}" for parameter in init_parameters(cls))
        if isinstance(value, Mapping):
            yield from _class_keys(value, key, find_class)


def _is_part(known: List[str], key: str) -> bool:
    """Whether ``key`` may be a part of something that takes whole mappings, such as a dict, and is no group of keys."""
    wholes = [other for other in known if key.startswith(f"{other}.")]
    return any(not any(inner.startswith(f"{whole}.") for inner in known) for whole in wholes)
