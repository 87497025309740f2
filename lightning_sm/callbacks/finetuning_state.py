"""``FinetuningState``: layers that Lightning's finetuning callbacks had unfrozen are so after a resume, too."""

from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Set

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._logging import log

__all__ = ["FinetuningStateMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class FinetuningStateMixin(_Base):
    """Save which parameters are trainable where a ``BaseFinetuning`` callback changes that, and restore it.

    When a fit goes on, Lightning's ``BaseFinetuning`` freezes its layers again, restores the optimizer's groups, and
    leaves the parameters of layers that it had unfrozen without gradients (``callbacks/finetuning.py``,
    ``on_fit_start``). Within an epoch it would also change learning rates a second time for that epoch. Without such a
    callback this one does nothing. Lightning 1.5 has no place for what is saved, and a line of the log says so.

    ``DistributedDataParallel`` averages the gradients of the parameters that are trainable when it is made, which is
    before a finetuning callback unfreezes any: each process would train those on its own part of the data
    (https://github.com/Lightning-AI/pytorch-lightning/issues/20340), and a resumed run would go on with those of one.
    So it is made anew when more are trainable.
    """

    namespace: Namespace

    def __init__(self) -> None:
        super().__init__()
        self._finetuning: List[Any] = []
        self._pl_module: Any = None
        self._epoch = -1
        self._averaged: Set[str] = set()
        self._looked = -1
        self._saved: Dict[str, Any] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Look for finetuning callbacks; a checkpoint is loaded after this."""
        kind = self.namespace.module("callbacks").BaseFinetuning
        self._finetuning = [callback for callback in trainer.callbacks if stage == "fit" and isinstance(callback, kind)]
        self._pl_module, self._epoch, self._looked, self._saved = pl_module, -1, -1, {}

    def state_dict(self) -> Dict[str, Any]:
        """Tell which parameters are trainable, which layers keep running statistics, and which epoch has begun."""
        if not self._finetuning:
            return {}
        parameters, modules = self._pl_module.named_parameters(), self._pl_module.named_modules()
        return {
            "trainable": [name for name, parameter in parameters if parameter.requires_grad],
            "running_stats": [name for name, module in modules if getattr(module, "track_running_stats", False)],
            "epoch": self._epoch,
        }

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Keep it until Lightning's callbacks have frozen their layers."""
        self._saved = dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set what the checkpoint says."""
        if not self._finetuning:
            return
        self._averaged = _trainable(pl_module)
        if self._saved:
            self._restore(pl_module)
            for callback in self._finetuning:
                callback.on_train_epoch_start = partial(_once, callback, self._saved["epoch"])
        elif trainer.global_step > 0 and trainer.is_global_zero:
            names = ", ".join(sorted({type(callback).__name__ for callback in self._finetuning}))
            log.warning("Layers that %s had unfrozen before this fit began are frozen again.", names)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember that finetuning callbacks have seen the start of this epoch."""
        self._epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Let all processes train what has been unfrozen together, when all callbacks have seen the epoch's start."""
        if not self._finetuning or self._looked == trainer.current_epoch:
            return
        self._looked = trainer.current_epoch
        trainable = _trainable(pl_module)
        if not trainable <= self._averaged:
            told = _wrap_again(strategy_of(trainer), pl_module)
            if told and trainer.is_global_zero:
                log.info(told)
            self._averaged = trainable

    def teardown(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Let go of the model."""
        self._finetuning, self._pl_module = [], None

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
        # It may hold tensors that fit the gradients of before.
        return "Each process trains alone the layers that are unfrozen now: the strategy has a ddp_comm_state."
    strategy.model = pl_module
    strategy.configure_ddp()
    return "Gradients of the layers that are unfrozen now are averaged over all processes."


def _once(callback: Any, epoch: int, trainer: Any, pl_module: Any, *more: Any) -> None:
    """Leave out the start of the epoch that the checkpoint was saved in, after which its learning rates were set."""
    vars(callback).pop("on_train_epoch_start", None)
    if trainer.current_epoch != epoch:
        callback.on_train_epoch_start(trainer, pl_module, *more)
