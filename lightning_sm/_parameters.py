"""The parameters that a class can be given."""

import inspect
from typing import Dict

__all__ = ["init_parameters"]


def init_parameters(cls: type) -> Dict[str, inspect.Parameter]:
    """Return the named parameters of a class by name, those behind ``**kwargs`` included.

    The signature of the class itself will not do: Lightning 1.5's data modules have a metaclass that hides it.
    """
    found: Dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found
