"""The strategy that settings name: its class, its arguments, and what to do where a value of them cannot be used."""

import math
import re
from dataclasses import fields
from typing import Any, Dict, Iterator, Mapping, Optional

from lightning_sm._distributed.communication import CommunicationOptions
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.strategies import registered_strategy
from lightning_sm._settings.classes import STRATEGY, find_class, init_parameters
from lightning_sm._settings.given import RunContext
from lightning_sm._settings.routed import RoutedSetting
from lightning_sm.errors import HyperparameterError, TopologyError

__all__ = [
    "check_strategy",
    "expanded_strategy",
    "shortened",
    "strategy_hint",
    "strategy_sizes",
]

_POLICIES = ("auto_wrap_policy", "activation_checkpointing_policy")
# What to do about a value or argument that the parser refuses, by its message, which does not say what it takes.
_HINTS = (
    (r'key "\w+_dtype"', "Write a dtype as torch.bfloat16, torch.float16 or torch.float32."),
    (
        r'key "(auto_wrap_policy|activation_checkpointing)',
        "Give a list of module classes by their paths, as in [model.Block], or the path of a function of your own.",
    ),
    (
        r"FSDPStrategy': Option '\w+' is not accepted",
        f"An argument of torch's FullyShardedDataParallel belongs below {STRATEGY}.dict_kwargs.",
    ),
)


def expanded_strategy(namespace: Namespace, name: Any, has_arguments: bool) -> Optional[Dict[str, Any]]:
    """The config of a class that is named alone, and of a registered strategy whose arguments follow; else ``None``.

    A parser takes ``--trainer.strategy=FSDPStrategy`` for the name of a registered strategy, and refuses arguments of
    a registered one such as ``fsdp``.

    Args:
        namespace: Lightning's namespace.
        name: What the parser has read.
        has_arguments: Whether arguments of the strategy follow.
    """
    if not isinstance(name, str):
        return None
    registered = registered_strategy(namespace, name)
    if registered is not None:
        cls, arguments = registered
        return {"class_path": _path(cls), "init_args": arguments} if has_arguments else None
    found = find_class(namespace, name)
    return None if found is None else {"class_path": _path(found)}


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def check_strategy(context: RunContext) -> None:
    """Refuse what the parser takes and what then fails with no hint, or with one in the middle of the parser's words.

    Raises:
        HyperparameterError: A wrap policy is a module, or options of communication contradict each other.
    """
    given = context.given
    arguments = given.get(STRATEGY)
    if isinstance(arguments, Mapping):
        options = {field.name: given.get(f"{STRATEGY}.{field.name}") for field in fields(CommunicationOptions)}
        CommunicationOptions(**options).check(arguments)
    for name in _POLICIES:
        key = f"{STRATEGY}.{name}"
        policy = given.get(key)
        path = policy.get("class_path") if isinstance(policy, Mapping) else policy
        cls = find_class(context.namespace, path) if isinstance(path, str) and "." in path else None
        if cls is not None and hasattr(cls, "named_parameters"):
            raise HyperparameterError(
                f"{key} is {path} (by {given.source_of(key)}), which is a module and no policy.",
                hint=f"Put the classes of modules into a list: [{path}].",
            )


def shortened(problem: str) -> str:
    """A parser's message about an argument of the strategy without what it says of the argument's wholes."""
    if 'Parser key "trainer.strategy"' not in problem:
        return problem
    short = re.sub(
        r"(Does not validate against any of the Union subtypes )?Subtypes: \[<class 'str'>, <class '[\w.]+'>\] "
        r"Errors: - Expected a <class 'str'>[^-]*- ",
        "",
        problem,
        count=1,
    )
    return re.sub(r" Given value type: <class '(dict|[\w.]*Namespace|[\w.]*NestedArg)'> Given value: .*", "", short)


def strategy_hint(problem: str) -> Optional[str]:
    """What to do where the parser refuses an argument of the strategy; ``None`` where it says so itself."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, problem)), None)


def strategy_sizes(context: RunContext, processes: Optional[int]) -> Iterator[RoutedSetting]:
    """Yield ``data_parallel_size`` of a strategy that has it, where it follows from the job's number of processes.

    Lightning's own ``auto`` is the number of hosts, with tensor parallelism within each. So it is replaced only where
    ``tensor_parallel_size`` is a number. A number in a config file that another job saved is replaced, too.

    Args:
        context: The run.
        processes: The number of processes of the job, where it is known.

    Raises:
        TopologyError: The mesh that was set is not the job's world. Lightning compares other sizes with it.
    """
    given = context.given
    name = given.class_path(STRATEGY)
    cls = None if name is None else find_class(context.namespace, name)
    if cls is None or processes is None:
        return
    known = init_parameters(cls)
    mesh = given.get(f"{STRATEGY}.device_mesh")
    is_mesh = isinstance(mesh, (list, tuple)) and all(type(size) is int for size in mesh)
    if "sharding_strategy" in known and is_mesh and math.prod(mesh) != processes:
        raise TopologyError(
            f"{given.source_of(f'{STRATEGY}.device_mesh')} sets device_mesh={list(mesh)} of the strategy, and the job "
            f"has {processes} processes.",
            hint="The product of the sizes is the number of processes. Request as many instances as they need.",
        )
    tensor, data = (given.get(f"{STRATEGY}.{name}") for name in ("tensor_parallel_size", "data_parallel_size"))
    if "data_parallel_size" not in known or type(tensor) is not int or tensor < 1:
        return
    key = f"{STRATEGY}.data_parallel_size"
    is_replaced = data != processes // tensor and not (given.is_explicit(key) and type(data) is int)
    if is_replaced and isinstance(given.get(STRATEGY), Mapping):
        yield RoutedSetting(
            f"{STRATEGY}.init_args.data_parallel_size",
            processes // tensor,
            f"{processes} processes by {context.topology.launcher}",
            *given.replaced_by_routing(key),
        )
