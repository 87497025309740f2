"""The strategy that settings name: its class, its arguments, and what to do where a value of them cannot be used."""

import difflib
import json
import math
import os
import re
from dataclasses import replace
from typing import Any, Dict, Iterator, Mapping, NoReturn, Optional, Sequence, Tuple

from lightning_sm._config.arguments import Part, nest
from lightning_sm._config.classes import STRATEGY, find_class, init_parameters
from lightning_sm._config.reader import apply_config
from lightning_sm._config.routed import RoutedSetting
from lightning_sm._config.settings import RunContext, Settings
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.strategies import registered_strategy
from lightning_sm.errors import HyperparameterError, TopologyError

__all__ = [
    "check_strategy",
    "expand_strategy",
    "strategy_class",
    "strategy_hint",
    "strategy_sizes",
    "sets_argument",
    "shortened",
    "with_strategy_class",
]

_POLICIES = ("auto_wrap_policy", "activation_checkpointing_policy")
# What to do about a value that the parser refuses, by the name of the argument, where the parser does not say what
# it takes.
_HINTS = (
    (r"_dtype\b", "Write a dtype as torch.bfloat16, torch.float16 or torch.float32."),
    (
        r"auto_wrap_policy|activation_checkpointing",
        "Give a list of module classes by their paths, as in [model.Block], or the path of a function of your own.",
    ),
)


def strategy_class(namespace: Namespace, settings: Settings) -> Optional[type]:
    """Return the class of the strategy that settings name, or ``None`` where they name none that can be found."""
    name = settings.class_path(STRATEGY)
    return None if name is None else find_class(namespace, name)


def _named(namespace: Namespace, name: Any, has_arguments: bool) -> Optional[Dict[str, Any]]:
    """The config of a class that is named alone, and of a registered strategy where arguments follow; else ``None``."""
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


def with_strategy_class(namespace: Namespace, parts: Sequence[Part]) -> Tuple[Part, ...]:
    """Let hyperparameters and words name a strategy by its class alone, or by its name with arguments beside it.

    A parser takes ``--trainer.strategy=FSDPStrategy`` for the name of a registered strategy, and refuses arguments of
    a registered one such as ``fsdp``.

    Args:
        namespace: Lightning's namespace.
        parts: The hyperparameters and words.
    """
    has_arguments = any(map(sets_argument, parts))

    def changed(part: Part) -> Part:
        if part.key not in (STRATEGY, f"{STRATEGY}.class_path"):
            return part
        name = Settings().with_layer(part.values, part.provenance).class_path(STRATEGY)
        found = _named(namespace, name, has_arguments or part.key != STRATEGY)
        if found is None:
            return part
        return replace(part, words=(f"--{STRATEGY}={json.dumps(found)}",), values=nest({STRATEGY: found}))

    return tuple(map(changed, parts))


def sets_argument(part: Part) -> bool:
    """Whether a hyperparameter or a word sets an argument of the strategy."""
    return part.key.startswith(f"{STRATEGY}.") and part.key != f"{STRATEGY}.class_path"


def expand_strategy(namespace: Namespace, parser: Any, values: Any) -> None:
    """Replace the name of a strategy among a parser's values by its class, where arguments of it follow.

    Args:
        namespace: Lightning's namespace.
        parser: The parser.
        values: What it has read so far, which is changed.
    """
    found = _named(namespace, values.get(STRATEGY), has_arguments=True)
    if found is not None:
        apply_config(parser, values, {"trainer": {"strategy": found}})


def check_strategy(context: RunContext) -> None:
    """Refuse arguments of a strategy that the parser takes and that then fail with no hint, or do nothing.

    Raises:
        HyperparameterError: DeepSpeed's config file is missing or no JSON, or a wrap policy is a module.
    """
    settings = context.settings
    for name in _POLICIES:
        key = f"{STRATEGY}.{name}"
        given = settings.get(key)
        path = given.get("class_path") if isinstance(given, Mapping) else given
        cls = find_class(context.namespace, path) if isinstance(path, str) and "." in path else None
        if cls is not None and hasattr(cls, "named_parameters"):
            raise HyperparameterError(
                f"{key} is {path} (by {settings.provenance_of(key)}), which is a module and no policy.",
                hint=f"Put the classes of modules into a list: [{path}].",
            )
    cls = strategy_class(context.namespace, settings)
    name = settings.get(STRATEGY)
    if cls is None and isinstance(name, str) and (name.endswith("Strategy") or "." in name):
        raise HyperparameterError(
            f"{STRATEGY} is {name} (by {settings.provenance_of(STRATEGY)}), and there is no such class.",
            hint=_no_class(name),
        )
    config = settings.get(f"{STRATEGY}.config")
    if isinstance(config, str) and cls is not None and "zero_optimization" in init_parameters(cls):
        _check_deepspeed_config(config, settings)


def _check_deepspeed_config(path: str, settings: Settings) -> None:
    key = f"{STRATEGY}.config"
    problem = None
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict):
            problem = "which holds no mapping"
    except OSError as error:
        problem = f"which cannot be read: {error.strerror or error}"
    except ValueError as error:
        problem = f"which is not JSON: {error}"
    if problem is None:
        return
    folder = os.getcwd()
    files = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    near = difflib.get_close_matches(os.path.basename(path), files, n=1)
    found = f"did you mean {near[0]}? " if near else ""
    raise HyperparameterError(
        f"{key} is {path} (by {settings.provenance_of(key)}), {problem}.",
        hint=f"{found}A config file of DeepSpeed is JSON and belongs into the source folder; its path begins in "
        f"{folder}, which holds {', '.join(files) or 'no file that ends in .json'}.",
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


def strategy_hint(context: RunContext, problem: str, written: Settings) -> Optional[str]:
    """What to do where the parser refuses an argument of the strategy; ``None`` where it refuses another setting."""
    if "strateg" not in problem.lower():
        return None
    cls = strategy_class(context.namespace, written)
    name = written.class_path(STRATEGY)
    keys = re.findall(r'Parser key "(\w+)"', problem)
    for pattern, hint in _HINTS:
        if any(re.search(pattern, key) for key in keys):
            return hint
    unknown = re.search(r"Option '(\w+)' is not accepted", problem)
    if unknown is not None and cls is not None:
        return _unknown_argument(unknown[1], cls)
    if cls is None and name is not None:
        return _no_class(name)
    return None


def _no_class(name: str) -> str:
    return (
        f"Name a strategy of this Lightning, such as ddp or fsdp, or a class by its path; {name} cannot be imported, "
        "or this Lightning has none of that name."
    )


def _unknown_argument(name: str, cls: type) -> str:
    known: Sequence[str] = sorted(init_parameters(cls))
    near = difflib.get_close_matches(name, known, n=1)
    asked = f"did you mean {near[0]!r}? " if near else ""
    if "auto_wrap_policy" in known:  # takes any argument of torch's FullyShardedDataParallel
        asked += f"An argument of torch's FullyShardedDataParallel belongs below {STRATEGY}.dict_kwargs. "
    return f"{asked}{cls.__name__} has the arguments {', '.join(known)}."


def strategy_sizes(context: RunContext, processes: Optional[int]) -> Iterator[RoutedSetting]:
    """Yield ``data_parallel_size`` of a strategy that has it, where it follows from the job's number of processes.

    Lightning's own ``auto`` is the number of hosts, with tensor parallelism within each. So it is replaced only where
    ``tensor_parallel_size`` is a number. A number in a config file that another job saved is replaced, too.

    Args:
        context: The run.
        processes: The number of processes of the job, where it is known.

    Raises:
        TopologyError: The sizes that were set cannot make up the job's world.
    """
    settings = context.settings
    cls = strategy_class(context.namespace, settings)
    if cls is None or processes is None:
        return
    known = init_parameters(cls)
    mesh = settings.get(f"{STRATEGY}.device_mesh")
    is_mesh = isinstance(mesh, (list, tuple)) and all(type(size) is int for size in mesh)
    if "sharding_strategy" in known and is_mesh and math.prod(mesh) != processes:
        _refuse(context, f"device_mesh={list(mesh)}", "device_mesh", processes)
    tensor, data = (settings.get(f"{STRATEGY}.{name}") for name in ("tensor_parallel_size", "data_parallel_size"))
    if "data_parallel_size" not in known or type(tensor) is not int or tensor < 1:
        return
    if processes % tensor:
        _refuse(context, f"tensor_parallel_size={tensor}", "tensor_parallel_size", processes)
    key = f"{STRATEGY}.data_parallel_size"
    if type(data) is int and data * tensor != processes and settings.is_explicit(key):
        _refuse(
            context, f"data_parallel_size={data} with tensor_parallel_size={tensor}", "data_parallel_size", processes
        )
    if data != processes // tensor and isinstance(settings.get(STRATEGY), Mapping):
        yield RoutedSetting(
            f"{STRATEGY}.init_args.data_parallel_size",
            processes // tensor,
            f"{processes} processes by {context.topology.launcher}",
            settings.replaced_by_routing(key),
        )


def _refuse(context: RunContext, what: str, name: str, processes: int) -> NoReturn:
    source = context.settings.provenance_of(f"{STRATEGY}.{name}")
    raise TopologyError(
        f"{source} sets {what} of the strategy, and the job has {processes} processes.",
        hint="The product of the sizes is the number of processes. Leave out data_parallel_size, which is then taken "
        "from the job, or request as many instances as the sizes need.",
    )
