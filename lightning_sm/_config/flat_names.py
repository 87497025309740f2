"""Finds the key that a hyperparameter without dots sets, such as ``lr`` of a tuning job or of SDK v3."""

from typing import Any, Collection, Dict, List, Mapping

from lightning_sm._config.settings import plain_key
from lightning_sm.errors import HyperparameterError

__all__ = ["flat_keys", "with_dots"]

# What separates groups where a name may hold no dot: `model__lr` means `model.lr`.
_SEPARATOR = "__"


def with_dots(name: str, groups: Collection[str]) -> str:
    """Return a name with dots for its double underscores if it begins with a group, such as ``model__lr``.

    Args:
        name: The name of a hyperparameter.
        groups: The groups of settings and the subcommands.

    Example::

        >>> with_dots("model__lr", {"model"}), with_dots("my__model", {"model"})
        ('model.lr', 'my__model')
    """
    return name.replace(_SEPARATOR, ".") if name.partition(_SEPARATOR)[0] in groups else name


def flat_keys(named: Mapping[str, Any], known: Collection[str], chosen: Mapping[str, str]) -> Dict[str, str]:
    """Return the key of each hyperparameter whose own name is not the key that it sets.

    A name that ``chosen`` maps is that key, or no key at all if it is mapped to an empty text. Another name without a
    dot that is no key by itself is the one key that ends in it. A name for which there is no such key is left out, and
    the parser refuses it with the closest key.

    Args:
        named: The hyperparameters by their names.
        known: All keys that the run's parser and the classes that the config names take.
        chosen: ``sagemaker.hyperparameters``: the key for each name.

    Raises:
        HyperparameterError: Several keys end in the name, or two hyperparameters set one key to different values.

    Example::

        >>> flat_keys({"lr": 0.1, "max-epochs": 3}, {"model.lr", "trainer.max_epochs"}, {})
        {'lr': 'model.lr', 'max-epochs': 'trainer.max_epochs'}
    """
    plain = sorted({plain_key(key) for key in known})
    found: Dict[str, str] = {}
    for name in named:
        key = chosen.get(name)
        if key is None and name not in plain and "." not in name:
            key = _only_key(name, plain)
        if key is not None and key != name:
            found[name] = key
    _refuse_doubles(named, found)
    return found


def _only_key(name: str, keys: List[str]) -> Any:
    last = name.replace("-", "_")
    dotted = last.replace(_SEPARATOR, ".")
    if dotted != last and dotted in keys:
        return dotted
    ending = [key for key in keys if key.rpartition(".")[2] == last and "." in key]
    if len(ending) > 1:
        raise HyperparameterError(
            f"The hyperparameter {name!r} may mean {' or '.join(ending)}.",
            hint=f"Name the one that is meant: sagemaker.hyperparameters: {{{name}: {ending[0]}}}, or send it as "
            f"{ending[0].replace('.', _SEPARATOR)!r}.",
        )
    return ending[0] if ending else None


def _refuse_doubles(named: Mapping[str, Any], found: Mapping[str, str]) -> None:
    names: Dict[str, str] = {}
    for name, value in named.items():
        key = plain_key(found.get(name, name))
        if key and key in names and named[names[key]] != value:
            raise HyperparameterError(
                f"The hyperparameters {names[key]!r} ({named[names[key]]!r}) and {name!r} ({value!r}) both set {key}.",
                hint="Send one of them.",
            )
        names[key] = name
