"""``FinetuningState``: restores which layers finetuning callbacks had unfrozen when a run resumes."""

import os
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, Set

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import around_sharded_loads, optimizer_groups, restore_optimizer_groups
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod, UndoList
from lightning_sm._lightning.strategies import strategy_kind
from lightning_sm._lightning.trainer import Callback, Trainer, callbacks_of
from lightning_sm._logging import log
from lightning_sm.callbacks.auto_resume import resume_of

__all__ = ["FinetuningStateMixin"]


class FinetuningStateMixin(Callback):
    """Save and restore ``requires_grad`` of all parameters in runs with a ``BaseFinetuning`` callback.

    When ``fit`` resumes, Lightning's ``BaseFinetuning`` freezes its layers again and restores the optimizer's parameter
    groups, but does not unfreeze the layers that had been unfrozen (``callbacks/finetuning.py``, ``on_fit_start``).
    Within an epoch it would also change that epoch's learning rates a second time. Without such a callback in the
    trainer this one does nothing. Lightning 1.5 does not save the state of callbacks; a warning is logged.

    ``DistributedDataParallel`` (DDP) averages the gradients of those parameters that require them when it is
    constructed, which is before a finetuning callback unfreezes any: each process would train the unfrozen layers on
    its own part of the data only. So the model is wrapped again when more parameters require gradients.

    ``FSDPStrategy`` loads the states of optimizers before ``BaseFinetuning`` restores their groups. With it the groups
    of the checkpoint are made before, and keep what was loaded into them, such as the learning rate of a schedule.
    While it trains, ``BaseFinetuning`` compares the parameters of an optimizer by identity: by their values, as
    Lightning does, a rank takes a parameter for another one if it holds no element of either.

    The state is a part of the checkpoint; no file or environment variable is read. It takes no arguments and raises
    nothing by itself.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20340

    Example::

        >>> from lightning_sm.callbacks import FinetuningState
        >>> callback = FinetuningState()
        >>> trainer = Trainer(callbacks=[BackboneFinetuning(5), callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self) -> None:
        super().__init__()
        self._finetuning: List[Any] = []
        self._pl_module: Any = None
        self._epoch = -1
        self._in_ddp: Set[str] = set()
        self._checked_epoch = -1
        self._saved: Dict[str, Any] = {}
        self._groups: List[List[Mapping[str, Any]]] = []
        self._undo = UndoList()

    def setup(self, trainer: Trainer, pl_module: Any, stage: Any = None) -> None:
        """Find the finetuning callbacks; Lightning calls ``load_state_dict`` after this."""
        kind = self.namespace.module("callbacks").BaseFinetuning
        self._finetuning = [
            callback for callback in callbacks_of(trainer) if stage == "fit" and isinstance(callback, kind)
        ]
        self._pl_module, self._epoch, self._checked_epoch, self._saved = pl_module, -1, -1, {}
        self._release()
        strategy = strategy_of(trainer)
        if self._finetuning and strategy_kind(strategy) == "fsdp":
            self._undo.append(_compare_by_identity(kind))
            self._undo.append(around_sharded_loads(strategy, partial(self._load, trainer, pl_module)))

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the values of the optimizers' groups, which finetuning callbacks have just replaced."""
        restore_optimizer_groups(trainer, self._groups)
        self._groups = []

    def state_dict(self) -> Dict[str, Any]:
        """Return which parameters require gradients, which layers track running statistics, and the latest epoch."""
        if not self._finetuning:
            return {}
        parameters, modules = self._pl_module.named_parameters(), self._pl_module.named_modules()
        return {
            "trainable": [name for name, parameter in parameters if parameter.requires_grad],
            "running_stats": [name for name, module in modules if getattr(module, "track_running_stats", False)],
            "epoch": self._epoch,
        }

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Keep the state until the finetuning callbacks have frozen their layers."""
        self._saved = dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the state."""
        if not self._finetuning:
            return
        self._in_ddp = _trainable(pl_module)
        if self._saved:
            self._restore(pl_module)
            for callback in self._finetuning:
                but_once = partial(_but_in, self._saved["epoch"])
                self._undo.append(ReplacedMethod(callback, "on_train_epoch_start", but_once, once=True).undo)
        elif trainer.global_step > 0 and trainer.is_global_zero:
            names = ", ".join(sorted({type(callback).__name__ for callback in self._finetuning}))
            log.warning("Layers that %s had unfrozen are frozen again: the checkpoint does not hold which ones.", names)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note that the finetuning callbacks have run for this epoch."""
        self._epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        """Wrap the model in DDP again if layers were unfrozen, after ``on_train_epoch_start`` of all callbacks."""
        if not self._finetuning or self._checked_epoch == trainer.current_epoch:
            return
        self._checked_epoch = trainer.current_epoch
        trainable = _trainable(pl_module)
        if not trainable <= self._in_ddp:
            message = _wrap_again(strategy_of(trainer), pl_module)
            if message and trainer.is_global_zero:
                log.info(message)
            self._in_ddp = trainable

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Any = None) -> None:
        """Drop the references to the model and the callbacks."""
        self._finetuning, self._pl_module = [], None
        self._release()

    def _release(self) -> None:
        self._undo.run()
        self._groups = []

    def _load(self, trainer: Trainer, pl_module: Any, read: Callable[[Any], Any], path: Any) -> Any:
        """Load a checkpoint into optimizers that have the groups with which it was saved."""
        resume = resume_of(trainer)
        states = _callback_states(os.fspath(path), weights_only=resume is not None and resume.weights_only)
        parameters = dict(pl_module.named_parameters())
        trainable = set(states.get(self.state_key, {}).get("trainable", ()))
        for name, parameter in parameters.items():
            parameter.requires_grad = parameter.requires_grad or name in trainable
        for callback in self._finetuning:
            saved = states.get(callback.state_key, {}).get("internal_optimizer_metadata", {})
            for index, optimizer in enumerate(trainer.optimizers):
                for group in saved.get(index, ())[len(optimizer.param_groups) :]:
                    optimizer.add_param_group({"params": [parameters[name] for name in group["params"]]})
        loaded = read(path)
        self._groups = optimizer_groups(trainer)
        return loaded

    def _restore(self, pl_module: Any) -> None:
        trainable, running = set(self._saved["trainable"]), set(self._saved["running_stats"])
        for name, parameter in pl_module.named_parameters():
            parameter.requires_grad = name in trainable
        for name, module in pl_module.named_modules():
            if hasattr(module, "track_running_stats"):
                module.track_running_stats = name in running


def _trainable(pl_module: Any) -> Set[str]:
    return {name for name, parameter in pl_module.named_parameters() if parameter.requires_grad}


def _wrap_again(strategy: Any, pl_module: Any) -> str:
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(strategy.model, DistributedDataParallel):
        return ""
    if getattr(strategy, "_ddp_comm_state", None) is not None:
        # It may hold tensors with the shapes of the previous buckets.
        return "Gradients of the newly unfrozen layers are not averaged: the strategy has a ddp_comm_state."
    strategy.model = pl_module
    strategy.configure_ddp()
    return "Gradients of the newly unfrozen layers are averaged over all processes."


def _but_in(epoch: int, hook: Callable[..., Any], trainer: Trainer, *more: Any) -> None:
    """Skip the hook for the epoch of the checkpoint, whose learning rates had already been changed."""
    if trainer.current_epoch != epoch:
        hook(trainer, *more)


def _callback_states(path: str, *, weights_only: bool) -> Dict[Any, Any]:
    """The states of callbacks in a checkpoint that the strategy is about to load."""
    import torch

    file = os.path.join(path, "meta.pt") if os.path.isdir(path) else path
    states: Dict[Any, Any] = torch.load(file, map_location="cpu", weights_only=weights_only).get("callbacks", {})
    return states


def _compare_by_identity(kind: Any) -> Callable[[], None]:
    """Let ``BaseFinetuning`` leave out of a new group what the optimizer has, and no other one of equal values."""
    before = vars(kind)["filter_on_optimizer"]

    def filter_on_optimizer(optimizer: Any, params: Iterable[Any]) -> List[Any]:
        present = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [parameter for parameter in params if id(parameter) not in present]

    kind.filter_on_optimizer = staticmethod(filter_on_optimizer)
    return lambda: setattr(kind, "filter_on_optimizer", before)
