"""What the data sets and samplers of a loader keep in attributes."""

from types import SimpleNamespace
from typing import Any, Dict, Iterable, Iterator, Mapping, Set, Tuple

from lightning_sm._resume.held import LOADER, Generators, attributes_of, held, set_packed
from lightning_sm._resume.random_state import is_drawn_by, is_generator, sampler_attributes
from lightning_sm._resume.values import (
    Packed,
    changed_values,
    is_plain_copy,
    packed_or_not,
    without_numbers_of_what_was_made,
)

__all__ = [
    "changed_data_set_values",
    "data_set_values",
    "data_sets",
    "get_sampler_state",
    "sampler_generators",
    "sampler_values",
    "set_data_set_values",
    "set_sampler_state",
]

# Of an attribute of a sampler: the order of two million items.
_MAX_SAMPLER_BYTES = 16 * 2**20


def data_sets(loader: Any, name: str, known: Set[int]) -> Iterator[Tuple[str, Any]]:
    """The project's data sets of a loader, those within others, its ``collate_fn``, and what they hold, by names."""
    data, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    yield from held(name, SimpleNamespace(dataset=data, collate_fn=collate), {id(loader)})
    # Of libraries' transforms, too.
    yield f"{name} generators", Generators([data, collate], known)


def data_set_values(loader: Any) -> Packed:
    """Return copies of the attributes of a loader's data sets."""
    return {
        key: {name: packed_or_not(value, set()) for name, value in attributes_of(data).items()}
        for key, data in data_sets(loader, LOADER, set())
    }


def changed_data_set_values(before: Packed, now: Packed) -> Packed:
    """Return what has changed between two results of :func:`data_set_values`, and the numbers that have not.

    In a restart a project may have set numbers, such as where to go on, before the loader is made.
    """
    changed = {}
    for key, values in now.items():
        old = before.get(key, {})
        # No texts, which may be paths.
        numbers = {name: each for name, each in old.items() if is_plain_copy(each) and not isinstance(each, str)}
        changed[key] = {**numbers, **without_numbers_of_what_was_made(old, *changed_values(old, values))}
    return changed


def set_data_set_values(loader: Any, values: Packed, device: Any) -> None:
    """Set attributes of a loader's data sets that differ from what :func:`data_set_values` had returned."""
    now = data_set_values(loader)
    for key, data in data_sets(loader, LOADER, set()):
        for name, packed in changed_values(now[key], values.get(key, {}))[0].items():
            set_packed(data, name, packed, device)


def sampler_values(loader: Any) -> Dict[str, Any]:
    """Return copies of what a loader and its samplers hold, by paths: what :func:`changed_values` compares."""
    found = sampler_attributes(loader)
    return {path: packed_or_not(value, set(), _MAX_SAMPLER_BYTES) for path, _, _, value in found}


def get_sampler_state(loader: Any) -> Dict[str, Any]:
    """Return the generators and numbers among them, from which the order of an epoch is drawn."""
    found = sampler_attributes(loader)
    return {path: packed_or_not(value, set()) for path, _, _, value in found if is_drawn_by(value)}


def set_sampler_state(loader: Any, state: Mapping[str, Any]) -> None:
    """Set what a loader and its samplers held, by paths."""
    for path, owner, name, _ in list(sampler_attributes(loader)):
        if path in state:
            set_packed(owner, name, state[path], "cpu")


def sampler_generators(loaders: Iterable[Any]) -> Set[int]:
    """The numbers of the generators that are restored with the samplers of loaders."""
    values = (value for loader in loaders for *_, value in sampler_attributes(loader))
    return {id(value) for value in values if is_generator(value)}
