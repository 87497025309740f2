"""What callbacks of Lightning or of a project cannot do where each process holds a part of the weights only."""

from typing import Any, Dict, Mapping

from lightning_sm._lightning.collectives import digest_of, gather_objects
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.strategies import is_sharded, strategy_kind
from lightning_sm._lightning.trainer import AVERAGING, Trainer, callbacks_named
from lightning_sm._logging import log
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["check_callbacks", "warn_of_own_states"]

_OWN_AVERAGE = (
    "Keep an AveragedModel as an attribute of the LightningModule, and update it in its on_train_batch_end: its "
    "parameters are sharded and saved as the others are."
)
# What Lightning itself puts into a checkpoint from each rank's part of the model.
_SHARDS = frozenset({"state_dict", "optimizer_states", "current_model_state"})


def check_callbacks(trainer: Trainer, pl_module: Any) -> None:
    """Refuse callbacks that fail within the training under the trainer's strategy, and warn of what averages nothing.

    ``WeightAveraging`` and ``StochasticWeightAveraging`` average whole weights. ``BaseFinetuning`` gives the optimizer
    what FSDP2 has gathered for a forward pass. torch's ``AveragedModel`` finds empty weights with DeepSpeed's stage 3.

    Args:
        trainer: The trainer, in ``setup``.
        pl_module: The model.

    Raises:
        StrategyUnavailableError: A callback cannot work with the strategy.
    """
    strategy = strategy_of(trainer)
    kind, name = strategy_kind(strategy), type(strategy).__name__
    if not kind or (kind == "fsdp" and trainer.world_size == 1):  # one process has the whole weights
        return
    is_stage_3 = kind == "deepspeed" and bool(getattr(strategy, "zero_stage_3", False))
    keeps_parts = kind != "deepspeed" or is_stage_3
    averaging, finetuning = callbacks_named(trainer, *AVERAGING), callbacks_named(trainer, "BaseFinetuning")
    if averaging and keeps_parts:
        raise StrategyUnavailableError(
            f"{type(averaging[0]).__name__} averages whole weights, and with {name} each process holds a part of them.",
            hint=_OWN_AVERAGE,
        )
    if finetuning and kind == "fsdp2":
        raise StrategyUnavailableError(
            f"{type(finetuning[0]).__name__} cannot unfreeze layers with {name}: the optimizer would get weights that "
            "are gathered for one forward pass.",
            hint="Train with FSDPStrategy or DDP, or let configure_optimizers take all parameters.",
        )
    averaged = [path for path, module in pl_module.named_modules() if type(module).__name__ == "AveragedModel"]
    if is_stage_3 and averaged and trainer.is_global_zero:
        log.warning(
            "%s of the model is an AveragedModel. With DeepSpeed stage 3 weights are empty between the steps: update "
            "it within deepspeed.zero.GatheredParameters.",
            averaged[0],
        )


def warn_of_own_states(trainer: Trainer, checkpoint: Mapping[str, Any]) -> None:
    """Log which states of a checkpoint differ between ranks, of which only those of global rank 0 are saved.

    Collective where the strategy shards: every rank must call it.

    Args:
        trainer: The trainer.
        checkpoint: What is saved.
    """
    if not is_sharded(trainer) or trainer.world_size == 1:
        return
    states: Dict[str, Any] = {
        **{str(key): value for key, value in checkpoint.items() if key not in (*_SHARDS, "callbacks")},
        **{str(key): value for key, value in checkpoint.get("callbacks", {}).items()},
    }
    digests = gather_objects(trainer, {key: digest_of(value) for key, value in states.items()})
    # A state that only one rank has, such as that of what only rank 0 observes, mostly holds no tensors.
    nothing = digest_of(())
    differences = (
        (rank, key.partition("{")[0])
        for rank, own in enumerate(digests)
        for key, first in digests[0].items()
        if own.get(key, nothing) != first
    )
    found = next(differences, None)
    if found is not None and trainer.is_global_zero:
        log.warning(
            "global_rank %d has other tensors than global_rank 0 in the state of %s, and a checkpoint keeps those of "
            "global_rank 0 only, which a resume gives to all. HINT: Keep them in the model, as parameters or buffers; "
            "if they are of a logged metric, log it with sync_dist=True.",
            *found,
        )
