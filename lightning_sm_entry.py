"""Entry points that Lightning and torch call in each program of an environment that has ``lightning_sm`` installed.

They have an effect in a SageMaker job only, and only in a program that does not import ``lightning_sm`` itself; and in
a program that ``lightning-sm plan`` measures. This module stands beside the package, because to import a module of a
package is to import the package.

Environment variables:

``LIGHTNING_SM_AUTO``
  In a job, ``1`` completes each ``Trainer`` and ``Fabric`` as :func:`lightning_sm.auto` does (torch 2.5 and newer);
  ``0`` switches everything off; otherwise programs are protected only. Set by ``lightning-sm launch`` or by the user.
``LIGHTNING_SM_MEASURE``
  The first ``fit`` is measured and writes to this file. Set by ``lightning-sm plan --measure``.

Source: ``_load_external_callbacks`` in ``lightning/fabric/utilities/registry.py``, ``_import_device_backends`` in
``torch/__init__.py``.
"""

import functools
import os
import sys
from _thread import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Set

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = [
    "Finder",
    "fabric_callbacks",
    "is_helper",
    "lightning_callbacks",
    "lightning_fabric_callbacks",
    "pytorch_lightning_callbacks",
    "rank_slot",
    "torch_imported",
    "variables_of",
]

_CLASSES = {
    "lightning.pytorch.trainer.trainer": "Trainer",
    "pytorch_lightning.trainer.trainer": "Trainer",
    "lightning.fabric.fabric": "Fabric",
    "lightning_fabric.fabric": "Fabric",
}
# What a launcher or Lightning sets for each rank, and the toolkit for the host.
_RANK = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK", "RANK", "SM_CURRENT_HOST")
# The mark of a rank: what tells it from others of its host, and its PID.
_MARK = "LIGHTNING_SM_TRAINING_PROCESS"
# Whether this module has imported the package, and not the program.
_has_imported = False


def torch_imported() -> None:
    """Complete the first ``Trainer`` or ``Fabric``, and those after it, where the job's environment asks for it.

    torch calls it at the end of its own import, in launchers, too. What it raised would break that import.
    """
    if _mode() == "1":
        for name in _CLASSES:
            if name in sys.modules:  # lightning/fabric/fabric.py has imported torch
                sys.modules[name].__class__ = _Unfinished
            else:
                sys.meta_path.insert(0, Finder(name, _execute))


def _protect(name: str) -> List[Any]:
    """Return no callbacks. Lightning asks for them when it constructs a ``Trainer`` or ``Fabric``."""
    if os.environ.get("LIGHTNING_SM_MEASURE"):
        from lightning_sm._plan.measure import measure_first_fit

        measure_first_fit(name)
    elif _mode() != "0":
        is_left = is_helper()
        if is_left and _is_unchanged():
            print("lightning_sm leaves this process alone, which a rank started for something else.", file=sys.stderr)
        elif _is_unchanged():
            from lightning_sm._auto import protect

            protect(name)
    return []


lightning_callbacks = functools.partial(_protect, "lightning.pytorch")
pytorch_lightning_callbacks = functools.partial(_protect, "pytorch_lightning")
lightning_fabric_callbacks = functools.partial(_protect, "lightning.fabric")
fabric_callbacks = functools.partial(_protect, "lightning_fabric")


def is_helper(*, guesses: bool = True) -> bool:
    """Whether a rank started this process for something else than training; marks this process as a rank if not.

    Such a process has the rank's variables, and would join its world in the rank's place.

    Args:
        guesses: Whether a parent counts as a rank that has not been marked as one.
    """
    mark = f"{rank_slot()} {os.getpid()}"
    found = os.environ.get(_MARK, "")
    if found == mark:
        return False
    if found.startswith(f"{rank_slot()} ") or (guesses and _has_rank_as_parent()):
        return True
    os.environ[_MARK] = mark
    return False


def rank_slot() -> str:
    """Launcher and local rank of this process, as its variables have them."""
    # Without RANK, which DeepSpeed's strategy sets in a running process; Lightning sets LOCAL_RANK there, too.
    return "/".join([*(os.environ.get(name, "") for name in _RANK[:2]), os.environ.get("LOCAL_RANK") or "0"])


def variables_of(pid: int, names: Sequence[str]) -> Dict[str, str]:
    """Those of these variables that a process was started with. Raises ``OSError`` where they cannot be read."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        entries = (os.fsdecode(entry).partition("=")[::2] for entry in file.read().split(b"\0"))
    return {name: value for name, value in entries if name in names}


def _has_rank_as_parent() -> bool:
    """Whether a Python program that has loaded torch, with the variables of the same rank, started this one.

    One without torch has started the training, as SDK v3's drivers do, and scripts that prepare something before it.
    """
    parent = f"/proc/{os.getppid()}"
    try:
        variables = variables_of(os.getppid(), _RANK)
        with open(f"{parent}/maps", "rb") as maps:
            has_torch = b"libtorch" in maps.read()
        is_python = os.path.basename(os.readlink(f"{parent}/exe")).startswith("python")
    except OSError:
        return False
    own = {name: os.environ[name] for name in _RANK if name in os.environ}
    return is_python and has_torch and bool(own) and own == variables


def _mode() -> str:
    """``LIGHTNING_SM_AUTO``; ``0`` outside a job."""
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    in_job = os.path.isfile(os.path.join(base, "input/config/resourceconfig.json"))
    return os.environ.get("LIGHTNING_SM_AUTO", "") if in_job else "0"


def _is_unchanged() -> bool:
    global _has_imported
    _has_imported = _has_imported or "lightning_sm" not in sys.modules
    return _has_imported


class Finder:
    """Finds a module by all other finders, and replaces the method of its loader that executes it.

    Args:
        name: The full name of the module.
        execute: Called instead, with the method and the module.
    """

    def __init__(self, name: str, execute: Callable[[Callable[[ModuleType], None], ModuleType], None]) -> None:
        self.name, self._execute = name, execute
        self._searching: Set[int] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> "Optional[ModuleSpec]":
        """As Python asks each finder of ``sys.meta_path``."""
        thread = get_ident()
        if fullname != self.name or thread in self._searching:
            return None
        from importlib.util import find_spec

        self._searching.add(thread)
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.discard(thread)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._execute, loader.exec_module)
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    _complete_first(getattr(module, _CLASSES[module.__name__]))


class _Unfinished(ModuleType):
    """The class of a module that is being executed, until its ``Trainer`` or ``Fabric`` is asked for."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in _CLASSES.values():
            self.__class__ = ModuleType  # type: ignore[assignment]
            _complete_first(value)
        return value


def _complete_first(cls: Any) -> None:
    """Call ``auto`` before the first object of a class is constructed: all imports of the program have run then."""
    inner = cls.__init__

    @functools.wraps(inner)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if cls.__init__ is not __init__:
            inner(self, *args, **kwargs)
            return
        cls.__init__ = inner
        if not is_helper() and _is_unchanged():
            from lightning_sm._auto import complete_all

            complete_all("LIGHTNING_SM_AUTO=1", {})
        cls.__init__(self, *args, **kwargs)

    cls.__init__ = __init__
