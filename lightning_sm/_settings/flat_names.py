"""Finds the key that a hyperparameter without dots sets, such as ``lr`` of a tuning job or of SDK v3."""

from typing import Any, Collection, Dict, List, Mapping, Optional

from lightning_sm._settings.line import plain_key
from lightning_sm.errors import HyperparameterError

__all__ = ["flat_keys"]


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
    names: Dict[str, str] = {}
    for name, value in named.items():
        key = chosen.get(name)
        if key is None and name not in plain and "." not in name:
            key = _only_key(name, plain)
        if key is not None and key != name:
            found[name] = key
        target = plain_key(name if key is None else key)
        other = names.setdefault(target, name)
        if target and other != name and named[other] != value:  # NaN differs from itself
            raise HyperparameterError(
                f"The hyperparameters {other!r} ({named[other]!r}) and {name!r} ({value!r}) both set {target}.",
                hint="Send one of them.",
            )
    return found


def _only_key(name: str, keys: List[str]) -> Optional[str]:
    last = name.replace("-", "_")
    dotted = last.replace("__", ".")
    if dotted != last and dotted in keys:
        return dotted
    ending = [key for key in keys if key.rpartition(".")[2] == last and "." in key]
    if len(ending) > 1:
        raise HyperparameterError(
            f"The hyperparameter {name!r} may mean {' or '.join(ending)}.",
            hint=f"Name the one that is meant: sagemaker.hyperparameters: {{{name}: {ending[0]}}}, or send it as "
            f"{ending[0].replace('.', '__')!r}.",
        )
    return ending[0] if ending else None
