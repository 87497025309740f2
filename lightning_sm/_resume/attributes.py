"""``Attributes``: what a project keeps in attributes between steps, such as counters, collected outputs, frozen layers.

A fit that continues gets no ``on_train_epoch_start`` of its epoch, nor any of what came before: a list that is made
there would be missing, one that is evaluated at the epoch's end would lack what was collected before the interruption,
and layers would be trained that the project had frozen or set to evaluation.
"""

import copy
import functools
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from enum import Enum, EnumMeta
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.restart import loaders_of
from lightning_sm._lightning.results import MAX_STATE_BYTES, metric_states, set_metric_states
from lightning_sm._lightning.strategies import is_sharded, strategy_kind
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._logging import log
from lightning_sm._resume.optimizers import parameters_beside_model
from lightning_sm._resume.program import PROGRAM, is_others, is_plain, is_projects, program_owners
from lightning_sm._resume.random_state import (
    add_generator_within,
    generators_within,
    get_generator_state,
    is_drawn_by,
    is_generator,
    new_generator,
    sampler_attributes,
    set_generator_state,
)

__all__ = [
    "TRAINER",
    "Attributes",
    "changed_data_set_values",
    "changed_values",
    "data_set_values",
    "get_sampler_state",
    "sampler_values",
    "set_data_set_values",
    "set_sampler_state",
    "with_large",
]

# About what an object of Python takes.
_ITEM_BYTES = 64
# Of so many items of a container it is looked at what has changed in them.
_MANY = 10_000
# Where the classes are that may be asked for their length.
_COUNTED = ("array", "builtins", "collections", "pandas")
# As many containers within each other are saved: one that holds itself has no end.
_MAX_DEPTH = 50
# As many objects that others hold.
_MAX_HELD = 100
# Of an attribute of a sampler: the order of two million items.
_MAX_SAMPLER_BYTES = 16 * 2**20
# With what the names of the data sets of a loader begin, and of what they hold.
_LOADER = "loader"
#: With what the names of the trainer and its loops begin.
TRAINER = "trainer"
# Their arguments that programs and callbacks change while they train.
_ARGUMENTS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_algorithm", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches", "max_epochs", "max_steps", "min_epochs", "min_steps",
}  # fmt: skip
# Of these, modules and classes have many.
_DEFINITIONS = {FunctionType, ModuleType, classmethod, property, staticmethod, type}
_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES = {each.__name__: each for each in (list, tuple, set, frozenset)}
_MAPPINGS = {each.__name__: each for each in (dict, OrderedDict, Counter)}
_FACTORIES = {each.__name__: each for each in (list, dict, set, int, float)}
_GENERATOR = "Generator"
# Of an enumeration.
_MEMBER = "Member"
# Of about the model's size, such as an average of the weights: it is saved once, where it is the same on all ranks.
_LARGE = "Large"
# Made anew for each epoch, beside numbers that must stay. Open files are iterators, too.
_ITERATOR = "is an iterator"
_OTHER = "is no number, text, tensor, array, generator or container of these"
# The key of ``requires_grad`` of the model's parameters, which is no attribute in ``vars``.
_TRAINED = "requires_grad"
# The key of the classes of the model's modules, of which a program may put others into the model.
_CLASSES = "classes of modules"

Packed = Dict[str, Dict[str, Any]]


class _NotSavedError(Exception):
    """A value cannot be saved; the message is the reason."""


class Attributes:
    """The attributes that training changes: numbers, texts, tensors, arrays, containers of these, and generators.

    Those of the model, of its modules, with the modes of training and evaluation and ``requires_grad`` of its
    parameters; of the data module and the training's data sets; of callbacks and of optimizers; arguments of the
    trainer; global variables of the project's modules and classes; and of plain objects of the project that one of
    these holds, such as an average of the weights, with the states of modules, metrics, optimizers and the like
    that Lightning does not save. Other objects of Lightning, torch and this package have their own ways, as have
    callbacks, data modules and optimizers with a ``state_dict`` of their own, and the states of the model's
    metrics. Flags of callbacks are left out: one that a signal has set would stop the training again.

    Args:
        namespace: Lightning's namespace.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        # What they were at the start of the training, but for those that were restored then.
        self._before: Packed = {}
        # What the sanity check has changed, by the names of its owners.
        self._checked: Dict[str, Set[str]] = {}
        self._told: Set[str] = set()
        # The large ones of the save that is being made.
        self._large: Packed = {}

    def begin(self, trainer: Trainer) -> None:
        """Note what the attributes are when training starts, after all ``on_train_start``, or the sanity check."""
        self._before = self._read(trainer, self._owners(trainer), _restored_otherwise(trainer))
        for owner, names in self._checked.items():
            for name in names:
                self._before.get(owner, {}).pop(name, None)

    def end_sanity_check(self, trainer: Trainer) -> None:
        """Let what has changed since :meth:`begin` be saved: a fit that continues has no sanity check."""
        for owner, values in self._read(trainer, self._owners(trainer), _restored_otherwise(trainer)).items():
            self._checked[owner] = set(changed_values(self._before.get(owner, {}), values)[0])

    def state(self, trainer: Trainer) -> Packed:
        """Return what this rank's training has changed so far; the log names once what cannot be saved."""
        found: Packed = {}
        owners, others = dict(self._owners(trainer)), _restored_otherwise(trainer)
        # Where the model is sharded, each rank has another part of what is as large.
        size = MAX_STATE_BYTES if is_sharded(trainer) else max(MAX_STATE_BYTES, 2 * _size_of_model(trainer))
        for owner, values in self._read(trainer, owners.items(), others).items():
            if owner.startswith(PROGRAM) and owner not in self._before:
                continue  # a module that was imported since the start
            before = self._before.get(owner, {})
            changed, lost = changed_values(before, values)
            if owner == _CLASSES:
                for name, cls in changed.items():
                    self._tell(trainer, "model", name, f"has become a {cls}")
                continue
            if owner.startswith((_LOADER, *PROGRAM)):
                changed = _without_numbers_of_what_was_made(before, changed, lost)
            for name in lost:
                large = _packed_or_not(_value_of(owners[owner], name), others, size)
                if isinstance(large, _NotSaved):
                    self._tell(trainer, owner, name, large.why, before.get(name))
                    continue
                changed[name] = (_LARGE, zlib.crc32(repr(_checksums(large)).encode()))
                if trainer.is_global_zero:
                    self._large.setdefault(owner, {})[name] = large
            if changed:
                found[owner] = changed
        return found

    def take_large(self) -> Packed:
        """Return what :meth:`state` has left out, of global rank 0: it may be as large as the model."""
        large, self._large = self._large, {}
        return large

    def restore(self, trainer: Trainer, saved: Packed, *, adds: bool = True) -> None:
        """Set what :meth:`state` returned.

        Args:
            trainer: The trainer, before the loaders are made, and again after :meth:`begin`.
            saved: What :meth:`state` returned.
            adds: Whether to set what is not there yet, and ``requires_grad``: before the loaders are made, pruning has
                not added its masks, and ``FinetuningState`` looks at which parameters DDP has got.
        """
        owners, device = dict(self._owners(trainer)), strategy_of(trainer).root_device
        parameters = dict(trainer.lightning_module.named_parameters())
        for key, values in saved.items():
            for name, packed in values.items():
                if key == _TRAINED and adds and name in parameters:
                    parameters[name].requires_grad_(packed)
                elif key in owners and (adds or hasattr(owners[key], name)):
                    set_packed(owners[key], name, packed, device)
                self._before.get(key, {}).pop(name, None)

    def restore_callbacks(self, trainer: Trainer, states: Mapping[str, Any]) -> None:
        """Load the project's callbacks again whose own state has changed since the restore, such as averaged weights.

        Args:
            trainer: The trainer, after all ``on_train_start``.
            states: What Lightning has saved of callbacks.
        """
        base, kept = self._namespace.module().Callback, self._namespace.module("callbacks").ModelCheckpoint
        for callback in filter(is_projects, callbacks_of(trainer)):
            state = states.get(str(getattr(callback, "state_key", "")))
            is_own = state is not None and _has_state(callback, base) and not isinstance(callback, kept)
            if is_own and not _same(callback.state_dict(), state):
                callback.load_state_dict(copy.deepcopy(state))

    def _owners(self, trainer: Trainer) -> Iterator[Tuple[str, Any]]:
        """The objects with attributes, and what they hold, by names that are the same in each run of the program."""
        model = trainer.lightning_module
        # What Lightning saves.
        saved = [*model.modules(), *model.parameters(), *trainer.optimizers]
        saved += [getattr(each, "optimizer", None) for each in trainer.optimizers]  # of DeepSpeed's
        saved += [each.scheduler for each in getattr(trainer, "lr_scheduler_configs", ())]
        seen = set(map(id, saved))
        most = len(seen) + _MAX_HELD
        yield TRAINER, trainer
        yield f"{TRAINER}.fit_loop", trainer.fit_loop
        yield f"{TRAINER}.fit_loop.epoch_loop", trainer.fit_loop.epoch_loop
        loaders = loaders_of(trainer)
        known = _sampler_generators(trainer)
        data = [
            each for index, loader in enumerate(loaders) for each in _data_sets(loader, f"{_LOADER} {index}", known)
        ]
        for name, each in self._holders(trainer):
            yield name, each
            yield from _held(name, each, seen, most)
            if is_projects(each) or name == PROGRAM[0]:
                yield f"{name} generators", _Generators(each, known)
        yield from data

    def _holders(self, trainer: Trainer) -> Iterator[Tuple[str, Any]]:
        """The project's modules, callbacks, optimizers, data module and script."""
        for name, each in trainer.lightning_module.named_modules():
            if is_projects(each) or _is_metric(each) or type(each).__module__.startswith("torch.nn.modules"):
                yield f"model.{name}" if name else "model", each
        lightning = self._namespace.module()
        for index, callback in enumerate(each for each in callbacks_of(trainer) if is_projects(each)):
            if not _has_state(callback, lightning.Callback):
                yield f"callback {index} {type(callback).__qualname__}", callback
        for index, optimizer in enumerate(_optimizers(trainer)):
            yield f"optimizer {index} {type(optimizer).__qualname__}", optimizer
        module: Any = getattr(trainer, "datamodule", None)
        if module is not None and not _has_state(module, lightning.LightningDataModule):
            yield "data module", module
        yield from program_owners()

    def _read(self, trainer: Trainer, owners: Iterable[Tuple[str, Any]], others: Set[Any]) -> Packed:
        import torch

        of_modules, of_optimizers, of_metrics = _bare_names(self._namespace)
        is_fsdp = strategy_kind(strategy_of(trainer)) == "fsdp"
        beside = {_address(tensor) for each in parameters_beside_model(trainer) for tensor in each.values()}
        parameters = trainer.lightning_module.named_parameters()
        found: Packed = {
            _TRAINED: {name: each.requires_grad for name, each in parameters},
            _CLASSES: _classes_of(trainer.lightning_module),
        }
        for owner, each in owners:
            if owner.startswith("callback"):
                left_out: Tuple[type, ...] = (bool,)
            elif owner.startswith((TRAINER, *PROGRAM)) or ((is_projects(each) or _is_metric(each)) and not is_fsdp):
                left_out = ()
            else:
                # Pruning and FSDP set tensors, StochasticWeightAveraging takes the momentum of batch norms for a while.
                left_out = (torch.Tensor, type(None))
            own = getattr(each, "__dict__", {})
            if owner.startswith(TRAINER):
                own = {name: value for name, value in own.items() if name in _ARGUMENTS}
            elif owner.startswith(PROGRAM):
                own = {name: value for name, value in own.items() if not name.startswith("__")}
            elif isinstance(each, torch.optim.Optimizer):
                own = {name: value for name, value in own.items() if name not in of_optimizers}
            elif _is_metric(each):
                own = {name: value for name, value in own.items() if name not in {*of_metrics, *each._defaults}}
            of_module = own if isinstance(each, torch.nn.Module) else {}
            buffers, hidden = of_module.get("_buffers", {}), of_module.get("_non_persistent_buffers_set", ())
            # Buffers that are no part of the module's state_dict.
            values = {**own, **{name: buffers[name] for name in hidden}}
            # A module beside the model saves its parameters with its buffers.
            known = others if isinstance(each, _Stateful) else others | beside
            found[owner] = {
                name: _packed_or_not(value, known)
                for name, value in values.items()
                if name not in of_modules and not isinstance(value, left_out)
            }
            if not trainer.is_global_zero:  # whose state_dict is saved, as if they were equal
                ranks = {name: each for name, each in buffers.items() if name not in hidden and each is not None}
                found[owner].update({name: _packed_or_not(value, set()) for name, value in ranks.items()})
        return found

    def _tell(self, trainer: Trainer, owner: str, name: str, why: str, before: Any = None) -> None:
        """Tell once of a loss. Data sets open files and fill caches: of these, only that a function is another one."""
        name, is_data = f"{owner}.{name}", owner.startswith((_LOADER, "data module"))
        if name not in self._told and (not is_data or getattr(before, "is_called", False)) and trainer.is_global_zero:
            log.warning("Not saved for a restart: the attribute %s, which %s.", name, why)
        self._told.add(name)


def _classes_of(model: Any) -> Dict[str, str]:
    """The class of each module but of metrics, whose wrappers add some; lazy ones get theirs with the first batch."""
    return {
        name: (getattr(each, "cls_to_become", None) or type(each)).__qualname__
        for name, each in model.named_modules()
        if not (_is_metric(each) or type(each).__module__.startswith("torchmetrics"))
    }


class _Stateful:
    """The state of an object that saves itself: of a module beside the model, such as a teacher, or of a scheduler."""

    __slots__ = ("__dict__", "holder")

    def __init__(self, holder: Any) -> None:
        import torch

        self.holder = holder
        self.state = holder.state_dict()
        if isinstance(holder, torch.nn.Module):
            self.metrics = metric_states(holder)

    def load(self, name: str, value: Any) -> None:
        """Set one of the two."""
        try:
            if name == "metrics":
                set_metric_states(self.holder, value)
            else:
                self.holder.load_state_dict(value)
        except Exception as error:  # what its class raises, where the program makes it otherwise than before
            log.warning("Not restored: the state of a %s: %s", type(self.holder).__qualname__, error)


class _Generators:
    """The generators within a container or object, by paths, but for known ones, to which these are added."""

    __slots__ = ("__dict__", "holder")

    def __init__(self, holder: Any, known: Set[int]) -> None:
        self.holder = holder
        vars(self).update({path: each for path, each in generators_within(holder).items() if id(each) not in known})
        known.update(map(id, vars(self).values()))


class _NotSaved(NamedTuple):
    """Stands for a value that cannot be saved: why, which object it is, and a tensor's version or another's length."""

    why: str
    number: int
    version: int
    is_called: bool


class _Room:
    """How many bytes a value may still take."""

    def __init__(self, size: int) -> None:
        self._size = self.left = size
        self.depth = 0

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _NotSavedError(f"takes more than {self._size >> 20} MiB")


@functools.lru_cache(maxsize=None)
def _bare_names(namespace: Namespace) -> Tuple[FrozenSet[str], FrozenSet[str], FrozenSet[str]]:
    """The attributes that Lightning and torch give a module or data module; torch an optimizer; torchmetrics a metric.

    Some strategies set a module's ``forward``.
    """
    import torch

    lightning: Any = namespace.module()
    modules = (torch.nn.Module(), lightning.LightningModule(), lightning.LightningDataModule())
    of_modules = {name for module in modules for name in vars(module)} - {"training"} | {"forward"}
    optimizer, metric = torch.optim.Optimizer([torch.zeros(1)], {}), sys.modules["torchmetrics"].SumMetric()
    return frozenset(of_modules), frozenset(vars(optimizer)), frozenset(vars(metric))


def _restored_otherwise(trainer: Trainer) -> Set[Any]:
    """Where the model's and the optimizers' state is, and the numbers of the samplers' generators."""
    import torch

    found = {_address(each) for each in trainer.lightning_module.parameters()}
    for module in trainer.lightning_module.modules():
        saved = {*module._buffers.keys()} - {*module._non_persistent_buffers_set}  # lists in modules of TorchScript
        found.update(_address(module._buffers[name]) for name in saved if module._buffers[name] is not None)
    states = [each for optimizer in _optimizers(trainer) for each in optimizer.state.values()]
    values = (value for state in states if isinstance(state, dict) for value in state.values())
    found.update(_address(value) for value in values if isinstance(value, torch.Tensor))
    found.update(_sampler_generators(trainer))
    return found - {None, 0}  # of tensors without numbers, such as parameters that are elsewhere


def _sampler_generators(trainer: Trainer) -> Set[int]:
    """The numbers of the generators that are restored with their samplers."""
    held = (value for loader in loaders_of(trainer) for *_, value in sampler_attributes(loader))
    return {id(value) for value in held if is_generator(value)}


def _is_metric(value: Any) -> bool:
    return isinstance(value, sys.modules["torchmetrics"].Metric)


def _held(owner: str, holder: Any, seen: Set[int], most: int) -> Iterator[Tuple[str, Any]]:
    """The plain objects of the project that an object holds, also in short lists and dictionaries.

    Such as a handwritten average of the weights, a meter, or a transform; and modules that are no part of the model.
    """
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        items: Iterable[Tuple[str, Any]] = [("", value)]
        if type(value) in (list, tuple) and len(value) <= _MAX_HELD:
            items = ((f"[{index}]", each) for index, each in enumerate(value))
        elif type(value) is dict and len(value) <= _MAX_HELD:
            items = ((f"[{key!r}]", each) for key, each in list(value.items()))
        for key, each in items:
            cls: Any = type(each)
            if not hasattr(each, "__dict__") or id(each) in seen or len(seen) >= most:
                continue
            # A data set may be torch's, such as a subset of the project's, or a library's; and be replaced by another.
            is_data = name in ("dataset", "datasets") and owner.startswith(_LOADER)
            name_of_each = f"{owner}.{name}{key}{f' {cls.__qualname__}' if is_data else ''}"
            if is_plain(cls) or is_data:
                seen.add(id(each))
                if is_projects(each):
                    yield name_of_each, each
                yield from _held(name_of_each, each, seen, most)
            # A data set may hold the model, and is read again from how it was when the epoch began.
            elif owner.startswith(("model", "callback")) and _is_stateful(cls):
                seen.add(id(each))
                found = _stateful(each, seen)
                if found is not None:
                    yield name_of_each, found


def _stateful(value: Any, seen: Set[int]) -> Optional[_Stateful]:
    """The state of a library's object, but of what is around the model, or has a part of its state on other ranks."""
    import torch

    if isinstance(value, torch.nn.Module):
        is_distributed = any(type(each).__module__.startswith("torch.distributed") for each in value.modules())
        if is_distributed or any(id(parameter) in seen for parameter in value.parameters()):
            return None
    try:
        return _Stateful(value)
    except Exception:  # what its class raises, such as ZeroRedundancyOptimizer
        return None


@functools.lru_cache(maxsize=None)
def _is_stateful(cls: Any) -> bool:
    """Whether objects of a library's class, or modules, save themselves. Loaders are read again."""
    import torch

    has_state = hasattr(cls, "state_dict") and hasattr(cls, "load_state_dict") and not hasattr(cls, "__iter__")
    is_free = not any(is_others(base.__module__) for base in cls.__mro__[:-1])
    return issubclass(cls, torch.nn.Module) or (has_state and is_free)


def _optimizers(trainer: Trainer) -> List[Any]:
    """The optimizers of the project's classes without a ``state_dict`` of their own."""
    import torch

    base = torch.optim.Optimizer
    present = [each for each in trainer.optimizers if isinstance(each, base)]
    return [each for each in present if is_projects(each) and not _has_state(each, base)]


def _has_state(value: Any, base: type) -> bool:
    """Whether a callback, data module or optimizer saves what it needs."""
    return getattr(type(value), "state_dict", None) is not getattr(base, "state_dict", None)


def _data_sets(loader: Any, name: str, known: Set[int]) -> Iterator[Tuple[str, Any]]:
    """The project's data sets of a loader, those within others, its ``collate_fn``, and what they hold, by names."""
    data, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    yield from _held(name, SimpleNamespace(dataset=data, collate_fn=collate), {id(loader)}, _MAX_HELD)
    # Of libraries' transforms, too.
    yield f"{name} generators", _Generators([data, collate], known)


def data_set_values(loader: Any) -> Packed:
    """Return copies of the attributes of a loader's data sets."""
    return {
        key: {name: _packed_or_not(value, set()) for name, value in vars(data).items()}
        for key, data in _data_sets(loader, _LOADER, set())
    }


def changed_data_set_values(before: Packed, now: Packed) -> Packed:
    """Return what has changed between two results of :func:`data_set_values`."""
    changed = {}
    for key, values in now.items():
        old = before.get(key, {})
        changed[key] = _without_numbers_of_what_was_made(old, *changed_values(old, values))
    return changed


def _without_numbers_of_what_was_made(
    before: Mapping[str, Any], changed: Dict[str, Any], lost: Mapping[str, str]
) -> Dict[str, Any]:
    """Leave out what would deny that an open file, or what was read of one, is to be made again, which is not saved."""
    if all(before.get(name) is not None or why == _ITERATOR for name, why in lost.items()):
        return changed
    return {name: each for name, each in changed.items() if not isinstance(each, _PLAIN)}


def set_data_set_values(loader: Any, values: Packed, device: Any) -> None:
    """Set attributes of a loader's data sets that differ from what :func:`data_set_values` had returned."""
    now = data_set_values(loader)
    for key, data in _data_sets(loader, _LOADER, set()):
        for name, packed in changed_values(now[key], values.get(key, {}))[0].items():
            set_packed(data, name, packed, device)


def _address(tensor: Any) -> Any:
    """Where the numbers of a tensor are; ``None`` for one that holds others, such as a ``DTensor``, or none yet."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr()
    except (RuntimeError, ValueError):  # the latter of a lazy module before its first batch
        return None


def sampler_values(loader: Any) -> Dict[str, Any]:
    """Return copies of what a loader and its samplers hold, by paths: what :func:`changed_values` compares."""
    found = sampler_attributes(loader)
    return {path: _packed_or_not(value, set(), _MAX_SAMPLER_BYTES) for path, _, _, value in found}


def get_sampler_state(loader: Any) -> Dict[str, Any]:
    """Return the generators and numbers among them, from which the order of an epoch is drawn."""
    found = sampler_attributes(loader)
    return {path: _packed_or_not(value, set()) for path, _, _, value in found if is_drawn_by(value)}


def set_sampler_state(loader: Any, state: Mapping[str, Any]) -> None:
    """Set what a loader and its samplers held, by paths."""
    for path, owner, name, _ in list(sampler_attributes(loader)):
        if path in state:
            set_packed(owner, name, state[path], "cpu")


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return what has changed between two packed states, by name, and why some of it cannot be saved."""
    changed = {path: each for path, each in now.items() if path not in before or not _same(each, before[path])}
    lost = {path: each.why for path, each in changed.items() if isinstance(each, _NotSaved)}
    return {path: each for path, each in changed.items() if path not in lost}, lost


def with_large(own: Packed, first: Packed, large: Packed) -> Packed:
    """Return what a rank has saved, with what global rank 0 has saved for all ranks.

    Args:
        own: What :meth:`Attributes.state` returned on the rank.
        first: The same of global rank 0.
        large: What :meth:`Attributes.take_large` returned there.
    """
    found: Packed = {}
    for owner, values in own.items():
        found[owner] = {}
        for name, packed in values.items():
            if not isinstance(packed, tuple) or packed[0] != _LARGE:
                found[owner][name] = packed
            elif packed == first.get(owner, {}).get(name):  # the same checksum
                found[owner][name] = large[owner][name]
            elif name in first.get(owner, {}):  # else it was larger there, as the log has told
                log.warning("Not restored: %s.%s, which is large and differed between ranks.", owner, name)
    return found


def _checksums(packed: Any) -> Any:
    """A packed value with checksums in the place of its tensors."""
    import torch

    if isinstance(packed, torch.Tensor):
        return zlib.crc32(packed.reshape(-1).view(torch.uint8).numpy().data)
    return [_checksums(each) for each in packed] if isinstance(packed, (tuple, list)) else packed


def _size_of_model(trainer: Trainer) -> int:
    """In bytes."""
    model = trainer.lightning_module
    return sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))


def _value_of(owner: Any, name: str) -> Any:
    own = vars(owner)
    return own[name] if name in own else own.get("_buffers", {}).get(name)


def _packed_or_not(value: Any, others: Set[Any], size: int = MAX_STATE_BYTES) -> Any:
    if type(value) in _DEFINITIONS:
        return _NotSaved(_OTHER, id(value), 0, callable(value))
    try:
        if is_generator(value) and id(value) not in others:
            return (_GENERATOR, get_generator_state(value))
        return _pack(value, others, _Room(size))
    except _NotSavedError as error:
        # An object may answer to any name, or with an error.
        is_iterator = hasattr(type(value), "__next__") and not hasattr(type(value), "read")
        # A module makes another dictionary each time.
        number = 0 if isinstance(value, dict) else id(value)
        return _NotSaved(_ITERATOR if is_iterator else str(error), number, _version(value, others), callable(value))


def _version(value: Any, others: Set[Any], depth: int = 2) -> int:
    """What changes when a value is changed in place, as far as a look at its items, or at some numbers, tells.

    Numbers of what is restored otherwise do not count, as in an LSTM's list of its weights. Nothing of another class is
    called: MONAI's ``Compose`` seeds its transforms anew when it is asked for its length.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if _address(value) in others:
            return id(value)
        version, some = 0, []
        with suppress(Exception):  # one without numbers, as on the device meta, or with none that Python has
            version = 0 if value.is_inference() else value._version
            # What is changed by its `data`, such as an average of weights, keeps its version.
            if type(value) in (torch.Tensor, torch.nn.Parameter):
                some = value.detach().reshape(-1)[:: value.numel() // 64 + 1].tolist()
        return hash((version, repr(some)))
    base: Any = next((each for each in (list, tuple, deque, dict, set, frozenset) if isinstance(value, each)), None)
    if base is not None:
        items = list(dict.values(value) if base is dict else base.__iter__(value))
        if depth == 0 or len(items) > _MANY:
            return hash(tuple(map(id, items)))
        kinds = (torch.Tensor, list, dict)
        versions = (_version(each, others, depth - 1) if isinstance(each, kinds) else id(each) for each in items)
        return hash(tuple(versions))
    if type(value).__module__ == "numpy" and hasattr(value, "flat"):
        return hash(value.flat[:: value.size // 4096 + 1].tobytes())
    is_counted = type(value).__module__.partition(".")[0] in _COUNTED and hasattr(type(value), "__len__")
    return len(value) if is_counted else 0


def _pack(value: Any, others: Set[Any], room: _Room) -> Any:
    """Return a copy of a value in host memory, of types that ``torch.load(weights_only=True)`` loads.

    Raises:
        _NotSavedError: It is another object, or a part of the model, or there is no room for it.
    """
    import torch

    kind = type(value)
    if kind in _PLAIN:
        room.take(_ITEM_BYTES + (len(value) if kind is str else 0))
        return value
    if kind is torch.Tensor:
        is_owned = value.layout is torch.strided and value.device.type != "meta" and _address(value) not in others
        if not is_owned or value.is_quantized:
            raise _NotSavedError(_OTHER)
        room.take(_ITEM_BYTES + value.numel() * value.element_size())
        return (
            "Tensor",
            value.detach().to("cpu", copy=True),
            value.device.type == "cpu",
            value.is_leaf and value.requires_grad,
        )
    if kind.__module__ == "numpy":
        if hasattr(value, "dtype") and value.dtype.kind in "biufc" and value.dtype.isnative:
            room.take(_ITEM_BYTES + value.nbytes)
            return ("ndarray", torch.as_tensor(value.copy())) if value.ndim else value.item()
        raise _NotSavedError(_OTHER)
    name = kind.__name__
    room.take(_ITEM_BYTES)
    # Of one that is too long even so, the first items tell.
    are_few = kind in (list, tuple) and 8 * len(value) <= room.left
    if are_few and all(type(each) is int and abs(each) < 2**63 for each in value):
        room.take(8 * len(value))
        return (name, torch.tensor(value, dtype=torch.int64))
    if kind is deque:
        return (name, _pack_each(value, others, room), value.maxlen)
    if _SEQUENCES.get(name) is kind:
        return (name, _pack_each(value, others, room))
    factory = getattr(value.default_factory, "__name__", "") if kind is defaultdict else ""
    if _MAPPINGS.get(name) is kind or (kind is defaultdict and _FACTORIES.get(factory) is value.default_factory):
        return (name, list(zip(_pack_each(value, others, room), _pack_each(value.values(), others, room))), factory)
    if isinstance(value, Enum) and _loaded(kind.__module__, kind.__qualname__) is kind:
        return (_MEMBER, kind.__module__, kind.__qualname__, value.name)
    raise _NotSavedError(_OTHER)


def _loaded(module: str, name: str) -> Any:
    """The enumeration of a module that is loaded, or ``None``."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, EnumMeta) else None


def _pack_each(values: Iterable[Any], others: Set[Any], room: _Room) -> List[Any]:
    room.depth += 1
    if room.depth > _MAX_DEPTH:
        raise _NotSavedError(f"nests more than {_MAX_DEPTH} containers")
    packed = [_pack(each, others, room) for each in values]
    room.depth -= 1
    return packed


def _unpack(packed: Any, device: Any) -> Any:
    import torch

    if not isinstance(packed, tuple):
        return packed
    name, content, *more = packed
    if name == _MEMBER:
        return _loaded(content, more[0])[more[1]]
    if name == "Tensor":
        was_on_cpu, requires_grad = more
        return (content.clone() if was_on_cpu else content.to(device)).requires_grad_(requires_grad)
    if name == "ndarray":
        return content.numpy().copy()
    if name == "deque":
        return deque((_unpack(each, device) for each in content), more[0])
    if name in _SEQUENCES:
        content = content.tolist() if isinstance(content, torch.Tensor) else content
        return _SEQUENCES[name](_unpack(each, device) for each in content)
    items = {_unpack(key, device): _unpack(each, device) for key, each in content}
    return defaultdict(_FACTORIES.get(more[0]), items) if name == "defaultdict" else _MAPPINGS[name](items)


def _same(one: Any, other: Any) -> bool:
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, _NotSaved):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        if isinstance(one, torch.Tensor):
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return False
            other = other.to(one.device)
            return bool(torch.equal(one, other) or torch.allclose(one, other, 0, 0, equal_nan=True))
        return bool(one == other or (one != one and other != other))  # one that is not a number
    except Exception:  # what a project's class, an array, or a tensor of some types raises
        return False


def set_packed(owner: Any, name: str, packed: Any, device: Any) -> None:
    """Set an attribute, in place where others may hold the same object."""
    import torch

    now = _value_of(owner, name)
    if isinstance(packed, tuple) and packed[0] == _GENERATOR:
        if is_generator(now):
            set_generator_state(now, packed[1])
        elif isinstance(owner, _Generators):
            add_generator_within(owner.holder, name, packed[1], device)
        elif now is None:
            setattr(owner, name, new_generator(packed[1], device))
        return
    try:
        value = _unpack(packed, device)
    except (KeyError, TypeError) as error:  # of an enumeration that is not loaded, or has other members now
        log.warning("Not restored: the attribute %s of a %s (%s)", name, type(owner).__qualname__, error)
        return
    if isinstance(owner, _Stateful):
        owner.load(name, value)
        return
    if type(now) is type(value):
        if isinstance(now, (list, deque)):
            now.clear()
            now.extend(value)
            return
        if isinstance(now, (dict, set)):
            now.clear()
            now.update(value)
            return
        is_alike = isinstance(now, torch.Tensor) and (now.shape, now.dtype) == (value.shape, value.dtype)
        if is_alike and now.device == value.device and not now.is_inference():
            now.detach().copy_(value.detach())
            return
    setattr(owner, name, value)
