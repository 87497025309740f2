"""``Attributes``: what a project keeps in attributes between steps, such as counters, collected outputs, frozen layers.

A fit that continues gets no ``on_train_epoch_start`` of its epoch, nor any of what came before: a list that is made
there would be missing, one that is evaluated at the epoch's end would lack what was collected before the interruption,
and layers would be trained that the project had frozen or set to evaluation.
"""

import copy
import functools
import sys
import time
import zlib
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

import torch

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.restart import loaders_of
from lightning_sm._lightning.results import MAX_STATE_BYTES
from lightning_sm._lightning.strategies import is_sharded, strategy_kind
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._logging import log
from lightning_sm._resume.data_values import data_sets, sampler_generators
from lightning_sm._resume.held import (
    LOADER,
    Generators,
    Stateful,
    attributes_of,
    held,
    is_metric,
    set_packed,
    value_of,
)
from lightning_sm._resume.optimizers import parameters_beside_model, schedulers_of
from lightning_sm._resume.program import PROGRAM, is_projects, program_owners
from lightning_sm._resume.values import (
    ITERATOR,
    PLAIN,
    TOO_LARGE,
    NotSaved,
    Packed,
    address_of,
    changed_values,
    checksums,
    is_same,
    packed_or_not,
    without_numbers_of_what_was_made,
)

__all__ = ["MADE", "TRAINER", "Attributes", "with_large"]

#: With what the names of the trainer and its loops begin.
TRAINER = "trainer"
#: The key of the names of what hooks had set before the first batch, and training has not changed since.
MADE = "made by hooks"
# Their arguments that programs and callbacks change while they train.
_ARGUMENTS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_algorithm", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches", "max_epochs", "max_steps", "min_epochs", "min_steps",
}  # fmt: skip
# Of about the model's size, such as an average of the weights: it is saved once, where it is the same on all ranks.
_LARGE = "Large"
# The key of ``requires_grad`` of the model's parameters, which is no attribute in ``vars``.
_TRAINED = "requires_grad"
# What ``save_hyperparameters`` sets: a dictionary with attributes.
_HPARAMS = "_hparams"
# The key of the classes of the model's modules, of which a program may put others into the model.
_CLASSES = "classes of modules"


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
        # The same before ``on_fit_start``, and the clocks then; what hooks have set since, and what of it is unchanged.
        self._start: Optional[Packed] = None
        self._clocks = _clocks()
        self._made: Dict[str, Dict[str, Any]] = {}
        # What the sanity check has changed, by the names of its owners.
        self._checked: Dict[str, Set[str]] = {}
        self._told: Set[str] = set()
        # The large ones of the save that is being made.
        self._large: Packed = {}

    def start(self, trainer: Trainer) -> None:
        """Note what the attributes are before ``on_fit_start``: what hooks set may follow from what is restored.

        Such as a copy of the first weights, or a first learning rate.
        """
        self._start, self._clocks = self._read(trainer, self._owners(trainer), _restored_otherwise(trainer)), _clocks()

    def begin(self, trainer: Trainer) -> None:
        """Note what the attributes are when training starts, after all ``on_train_start``, or the sanity check."""
        self._before = self._read(trainer, self._owners(trainer), _restored_otherwise(trainer))
        self._made = {owner: self._made_by_hooks(owner, values) for owner, values in self._before.items()}
        for found in (self._checked, self._made):
            for owner, names in found.items():
                for name in names:
                    self._before.get(owner, {}).pop(name, None)

    def _made_by_hooks(self, owner: str, values: Mapping[str, Any]) -> Dict[str, Any]:
        """What has been set since :meth:`start`, but for texts (paths), readings of clocks, and other objects."""
        if self._start is None:
            return {}
        is_new = owner not in self._start
        if not owner.startswith(("model", "callback", *PROGRAM)) or (is_new and owner.startswith(PROGRAM)):
            return {}
        changed, lost = changed_values(self._start.get(owner, {}), values)
        large = {name: values[name] for name, why in lost.items() if why.startswith(TOO_LARGE)}
        kept = {name: each for name, each in changed.items() if type(each) is not str and not self._is_time(each)}
        return {**kept, **large}

    def _is_time(self, value: Any) -> bool:
        """Whether a number is one that a clock has shown since :meth:`start`, in seconds or nanoseconds."""
        if type(value) not in (int, float):
            return False
        clocks = zip(self._clocks, _clocks())
        return any(then <= value <= now or then * 1e9 <= value <= now * 1e9 for then, now in clocks)

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
            # One that is the same object has been read all the same.
            lost.update({name: ITERATOR for name, each in values.items() if getattr(each, "why", "") == ITERATOR})
            if owner == _CLASSES:
                for name, cls in changed.items():
                    self._tell(trainer, "model", name, f"has become a {cls}")
                continue
            if owner.startswith((LOADER, *PROGRAM)):
                changed = without_numbers_of_what_was_made(before, changed, lost)
            for name in lost:
                large = packed_or_not(value_of(owners[owner], name), others, size)
                if isinstance(large, NotSaved):
                    self._tell(trainer, owner, name, large.why, before.get(name))
                    continue
                changed[name] = (_LARGE, zlib.crc32(repr(checksums(large)).encode()))
                if trainer.is_global_zero:
                    self._large.setdefault(owner, {})[name] = large
            if changed:
                found[owner] = changed
            made = self._made.get(owner, {})
            unchanged = [name for name in made if name in changed and is_same(values[name], made[name])]
            if unchanged:
                found.setdefault(MADE, {})[owner] = unchanged
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
            if is_own and not is_same(callback.state_dict(), state):
                callback.load_state_dict(copy.deepcopy(state))

    def _owners(self, trainer: Trainer) -> Iterator[Tuple[str, Any]]:
        """The objects with attributes, and what they hold, by names that are the same in each run of the program."""
        model = trainer.lightning_module
        # What Lightning saves.
        saved = [*model.modules(), *model.parameters(), *trainer.optimizers]
        saved += [getattr(each, "optimizer", None) for each in trainer.optimizers]  # of DeepSpeed's
        schedulers = [part for each in schedulers_of(trainer) for part in (each, *getattr(each, "_schedulers", ()))]
        saved += schedulers
        seen = set(map(id, saved))
        yield TRAINER, trainer
        yield f"{TRAINER}.fit_loop", trainer.fit_loop
        yield f"{TRAINER}.fit_loop.epoch_loop", trainer.fit_loop.epoch_loop
        loaders = loaders_of(trainer)
        known = sampler_generators(loaders)
        data = [each for index, loader in enumerate(loaders) for each in data_sets(loader, f"{LOADER} {index}", known)]
        for name, each in self._holders(trainer):
            yield name, each
            yield from held(name, each, seen)
            if is_projects(each) or name.startswith(PROGRAM):
                yield f"{name} generators", Generators(each, known)
        # Of what these hold, functions are no part of their state: schedules, and hooks around steps.
        for index, each in enumerate(() if is_sharded(trainer) else (*trainer.optimizers, *schedulers)):
            yield from held(f"optimizer or scheduler {index}", each, seen)
        yield from data

    def _holders(self, trainer: Trainer) -> Iterator[Tuple[str, Any]]:
        """The project's modules, callbacks, optimizers, data module and script."""
        for name, each in trainer.lightning_module.named_modules():
            if is_projects(each) or is_metric(each) or type(each).__module__.startswith("torch.nn.modules"):
                yield f"model.{name}" if name else "model", each
        lightning = self._namespace.module()
        for index, callback in enumerate(each for each in callbacks_of(trainer) if is_projects(each)):
            if not _has_state(callback, lightning.Callback):
                yield f"callback {index} {type(callback).__qualname__}", callback
        for index, optimizer in enumerate(_optimizers(trainer)):
            yield f"optimizer {index} {type(optimizer).__qualname__}", optimizer
        module: Any = getattr(trainer, "datamodule", None)
        for owner, each in (("model", trainer.lightning_module), ("data module", module)):
            yield f"{owner} hparams", getattr(each, _HPARAMS, {})
        if module is not None and not _has_state(module, lightning.LightningDataModule):
            yield "data module", module
        yield from program_owners()

    def _read(self, trainer: Trainer, owners: Iterable[Tuple[str, Any]], others: Set[Any]) -> Packed:
        of_modules, of_optimizers, of_metrics = _bare_names(self._namespace)
        is_fsdp = strategy_kind(strategy_of(trainer)) == "fsdp"
        beside = {address_of(tensor) for each in parameters_beside_model(trainer) for tensor in each.values()}
        parameters = trainer.lightning_module.named_parameters()
        found: Packed = {
            _TRAINED: {name: each.requires_grad for name, each in parameters},
            _CLASSES: _classes_of(trainer.lightning_module),
        }
        for owner, each in owners:
            left_out: Tuple[type, ...] = ()
            if owner.startswith("callback"):
                left_out = (bool,)
            elif isinstance(each, torch.nn.Module) and (is_fsdp or not (is_projects(each) or is_metric(each))):
                # Pruning and FSDP set tensors, StochasticWeightAveraging takes the momentum of batch norms for a while.
                left_out = (torch.Tensor, type(None))
            own = attributes_of(each)
            if owner.startswith(TRAINER):
                own = {name: value for name, value in own.items() if _is_of_trainer(owner, name, value)}
            elif owner.startswith(PROGRAM):
                own = {name: value for name, value in own.items() if not name.startswith("__")}
            elif isinstance(each, torch.optim.Optimizer):
                own = {name: value for name, value in own.items() if name not in of_optimizers}
            elif is_metric(each):
                own = {name: value for name, value in own.items() if name not in {*of_metrics, *each._defaults}}
            of_module = own if isinstance(each, torch.nn.Module) else {}
            buffers, hidden = of_module.get("_buffers", {}), of_module.get("_non_persistent_buffers_set", ())
            # Buffers that are no part of the module's state_dict.
            values = {**own, **{name: buffers[name] for name in hidden}}
            # A module beside the model saves its parameters with its buffers.
            known = others if isinstance(each, Stateful) else others | beside
            found[owner] = {
                name: packed_or_not(value, known)
                for name, value in values.items()
                if name not in of_modules and not isinstance(value, left_out)
            }
            if not trainer.is_global_zero:  # whose state_dict is saved, as if they were equal
                ranks = {name: each for name, each in buffers.items() if name not in hidden and each is not None}
                found[owner].update({name: packed_or_not(value, set()) for name, value in ranks.items()})
        return found

    def _tell(self, trainer: Trainer, owner: str, name: str, why: str, before: Any = None) -> None:
        """Tell once of a loss. Data sets open files and fill caches: of these, only that a function is another one."""
        name, is_data = f"{owner}.{name}", owner.startswith((LOADER, "data module"))
        if name not in self._told and (not is_data or getattr(before, "is_called", False)) and trainer.is_global_zero:
            log.warning("Not saved for a restart: the attribute %s, which %s.", name, why)
        self._told.add(name)


def _clocks() -> Tuple[float, ...]:
    return time.time(), time.monotonic(), time.perf_counter()


def _is_of_trainer(owner: str, name: str, value: Any) -> bool:
    """Whether an attribute is an argument, or the trainer's own: the program's, or one that Lightning leaves alone."""
    is_free = owner == TRAINER and type(value) in PLAIN and not name.startswith("_") and name != "should_stop"
    return name in _ARGUMENTS or is_free


def _classes_of(model: Any) -> Dict[str, str]:
    """The class of each module but of metrics, whose wrappers add some; lazy ones get theirs with the first batch."""
    return {
        name: (getattr(each, "cls_to_become", None) or type(each)).__qualname__
        for name, each in model.named_modules()
        if not (is_metric(each) or type(each).__module__.startswith("torchmetrics"))
    }


@functools.lru_cache(maxsize=None)
def _bare_names(namespace: Namespace) -> Tuple[FrozenSet[str], FrozenSet[str], FrozenSet[str]]:
    """The attributes that Lightning and torch give a module or data module; torch an optimizer; torchmetrics a metric.

    Some strategies set a module's ``forward``.
    """
    lightning: Any = namespace.module()
    modules = (torch.nn.Module(), lightning.LightningModule(), lightning.LightningDataModule())
    of_modules = {name for module in modules for name in vars(module)} - {"training"} | {"forward", _HPARAMS}
    optimizer, metric = torch.optim.Optimizer([torch.zeros(1)], {}), sys.modules["torchmetrics"].SumMetric()
    return frozenset(of_modules), frozenset(vars(optimizer)), frozenset(vars(metric))


def _restored_otherwise(trainer: Trainer) -> Set[Any]:
    """Where the model's and the optimizers' state is, and the numbers of the samplers' generators."""
    found = {address_of(each) for each in trainer.lightning_module.parameters()}
    for module in trainer.lightning_module.modules():
        saved = {*module._buffers.keys()} - {*module._non_persistent_buffers_set}  # lists in modules of TorchScript
        found.update(address_of(module._buffers[name]) for name in saved if module._buffers[name] is not None)
    states = [each for optimizer in _optimizers(trainer) for each in optimizer.state.values()]
    values = (value for state in states if isinstance(state, dict) for value in state.values())
    found.update(address_of(value) for value in values if isinstance(value, torch.Tensor))
    found.update(sampler_generators(loaders_of(trainer)))
    return found - {None, 0}  # of tensors without numbers, such as parameters that are elsewhere


def _optimizers(trainer: Trainer) -> List[Any]:
    """The optimizers of the project's classes without a ``state_dict`` of their own."""
    base = torch.optim.Optimizer
    present = [each for each in trainer.optimizers if isinstance(each, base)]
    return [each for each in present if is_projects(each) and not _has_state(each, base)]


def _has_state(value: Any, base: type) -> bool:
    """Whether a callback, data module or optimizer saves what it needs."""
    return getattr(type(value), "state_dict", None) is not getattr(base, "state_dict", None)


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


def _size_of_model(trainer: Trainer) -> int:
    """In bytes."""
    model = trainer.lightning_module
    return sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
