"""How strategies save and load: hooks around that, what DeepSpeed lacks in it, and another storage for DCP."""

import sys
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping

from lightning_sm._lightning.legacy import connector_of, strategy_of
from lightning_sm._lightning.namespaces import Namespace, has_base
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.strategies import is_sharded, strategy_kind
from lightning_sm._lightning.trainer import Trainer, callbacks_of

__all__ = [
    "around_removals",
    "around_sharded_loads",
    "around_sharded_saves",
    "complete_for_load",
    "dcp_storage",
    "deferred_write_errors",
    "dump_checkpoint",
    "has_dcp_storage",
    "innermost_wrapper",
    "is_failed_write",
    "keep_averages",
    "optimizer_groups",
    "reasons_of",
    "restore_optimizer_groups",
    "saving_for_restart",
    "save_dcp",
    "saves_with_dcp",
    "set_up_optimizers_again",
    "state_bytes",
]


def dump_checkpoint(trainer: Trainer) -> Dict[str, Any]:
    """What ``Trainer.save_checkpoint`` of Lightning saves; projects override that method. Collective."""
    found: Dict[str, Any] = connector_of(trainer, "checkpoint").dump_checkpoint(weights_only=False)
    return found


def set_up_optimizers_again(trainer: Trainer) -> None:
    """Let the model configure its optimizers by the loops of the checkpoint that Lightning has loaded; not with 1.5."""
    strategy: Any = strategy_of(trainer)
    if hasattr(strategy, "setup_optimizers"):
        connector_of(trainer, "checkpoint").restore_loops()  # as Lightning does again later
        strategy.setup_optimizers(trainer)


@contextmanager
def saving_for_restart(namespace: Namespace, trainer: Trainer) -> Iterator[None]:
    """Call hooks of the project for a restart only, and undo what they change in what is trained.

    An ``on_save_checkpoint`` without an ``on_load_checkpoint`` is for other readers than a restart, as one that writes
    averages in place of the weights, or the best model in another format. Others may set an optimizer to evaluation,
    which schedule-free ones change the weights for.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
    """
    lightning: Any = namespace.module()
    owners = [
        (trainer.lightning_module, lightning.LightningModule),
        (getattr(trainer, "datamodule", None), lightning.LightningDataModule),
        *((callback, lightning.Callback) for callback in callbacks_of(trainer)),
    ]
    own = [(each, base) for each, base in owners if _is_projects(getattr(each, "on_save_checkpoint", None))]
    readers = [
        each for each, base in own if getattr(each.on_load_checkpoint, "__func__", None) is not base.on_load_checkpoint
    ]
    skipped = [each for each, _ in own if each not in readers]
    replaced = [ReplacedMethod(each, "on_save_checkpoint", lambda *_, **__: None) for each in skipped]
    try:
        with _unchanged(trainer) if readers and not is_sharded(trainer) else nullcontext():
            yield
    finally:
        for method in replaced:
            method.undo()


def _is_projects(method: Any) -> bool:
    package = str(getattr(method, "__module__", "")).partition(".")[0]
    return method is not None and package not in ("lightning", "pytorch_lightning", "lightning_sm")


def optimizer_groups(trainer: Trainer) -> List[List[Mapping[str, Any]]]:
    """The learning rates and other values of the optimizers' groups, also of DeepSpeed's, which saves them itself."""
    return [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in trainer.optimizers
    ]


def restore_optimizer_groups(trainer: Trainer, saved: List[List[Mapping[str, Any]]]) -> None:
    """Set what :func:`optimizer_groups` returned."""
    for optimizer, groups in zip(trainer.optimizers, saved):
        for group, values in zip(optimizer.param_groups, groups):
            group.update(values)


@contextmanager
def _unchanged(trainer: Trainer) -> Iterator[None]:
    """Set weights, buffers and the options of optimizers to what they were."""
    import torch

    module = strategy_of(trainer).lightning_module
    tensors = [each for each in (*module.parameters(), *module.buffers()) if not each.is_inference()]
    before = [(each, each._version, each.detach().to("cpu", copy=True)) for each in tensors]
    groups = optimizer_groups(trainer)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, version, value in before:
                if tensor._version != version:
                    tensor.copy_(value)
        restore_optimizer_groups(trainer, groups)


def innermost_wrapper(checkpoint_io: Any) -> Any:
    """The innermost of Lightning's wrapping ``CheckpointIO``, whose ``checkpoint_io`` writes; ``None`` without one."""
    found = None
    while has_base(type(checkpoint_io), "_WrappingCheckpointIO"):
        found, checkpoint_io = checkpoint_io, checkpoint_io.checkpoint_io
    return found


def around_sharded_saves(strategy: Any, save: Callable[[Callable[..., Any], Any, Any], None]) -> Callable[[], None]:
    """Call ``save`` instead of the strategy's ``save_checkpoint``.

    Args:
        strategy: The strategy.
        save: Takes the function that writes, ``write(checkpoint, path)``; the checkpoint; and its path.

    Returns:
        A function that undoes it.
    """

    def replacement(original: Any, checkpoint: Any, filepath: Any, **options: Any) -> None:
        save(lambda content, path: original(content, path, **options), checkpoint, filepath)

    return ReplacedMethod(strategy, "save_checkpoint", replacement).undo


def around_sharded_loads(strategy: Any, load: Callable[[Callable[[Any], Any], Any], Any]) -> Callable[[], None]:
    """Call ``load`` instead of the strategy's ``load_checkpoint``.

    Args:
        strategy: The strategy.
        load: Takes the function that reads, ``read(path)``, and the path; returns what that function returned.

    Returns:
        A function that undoes it.
    """

    def replacement(original: Any, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        return load(lambda path: original(path, *args, **kwargs), checkpoint_path)

    return ReplacedMethod(strategy, "load_checkpoint", replacement).undo


def around_removals(strategy: Any, remove: Callable[[Callable[[Any], None], Any], None]) -> Callable[[], None]:
    """Call ``remove`` on every rank instead of the strategy's ``remove_checkpoint``, which acts on global rank 0 only.

    Args:
        strategy: The strategy.
        remove: Takes the function that removes, and the path.

    Returns:
        A function that undoes it.
    """
    return ReplacedMethod(strategy, "remove_checkpoint", remove).undo


def complete_for_load(strategy: Any) -> None:
    """Let DeepSpeed's stage 3 load a checkpoint for a test, a validation or a prediction.

    Without an optimizer its engine has no copies of the weights to update, and no method that it calls for that
    (https://github.com/deepspeedai/DeepSpeed/issues/7272). What the training has left gathered on each rank must be
    partitioned before: the engine would load it in vain, and use the rank's older part of it.

    Args:
        strategy: Any strategy, which has been set up; others are left alone.
    """
    offload: Any = getattr(getattr(strategy, "model", None), "optimizer", None)
    if type(offload).__name__ == "DeepSpeedZeRoOffload" and not hasattr(offload, _RESTORE_COPIES):
        offload.partition_all_parameters()
        setattr(offload, _RESTORE_COPIES, lambda: None)


_RESTORE_COPIES = "_restore_from_bit16_weights"
# What DeepSpeed's strategy leaves out of a checkpoint, under a name that it does not know.
_AVERAGES = "lightning_sm_averages"


def keep_averages(strategy: Any) -> None:
    """Let DeepSpeed's checkpoints hold what ``WeightAveraging`` puts in the place of the model's state.

    The strategy leaves out the state, as its engine saves the model's own; the callback then fails when it resumes.

    Args:
        strategy: Any strategy; others are left alone.
    """
    if strategy_kind(strategy) != "deepspeed":
        return

    def save(write: Callable[[Any, Any], Any], checkpoint: Any, path: Any) -> None:
        if "current_model_state" in checkpoint:
            own = {key: value for key, value in checkpoint.items() if key != "current_model_state"}
            checkpoint = {**own, _AVERAGES: checkpoint["state_dict"]}
        write(checkpoint, path)

    def load(read: Callable[[Any], Any], path: Any) -> Any:
        found = read(path)
        if _AVERAGES in found:
            # The engine has loaded the model's own.
            model = strategy.lightning_module.state_dict()
            found.update(state_dict=found.pop(_AVERAGES), current_model_state=model)
        return found

    around_sharded_saves(strategy, save)
    around_sharded_loads(strategy, load)


@contextmanager
def deferred_write_errors(strategy: Any, errors: List[BaseException]) -> Iterator[None]:
    """Collect errors of DeepSpeed's engine in writing a file, instead of raising them between its collectives.

    A rank that raised would leave the others in a barrier. DCP exchanges the errors of all ranks itself.

    Args:
        strategy: The strategy.
        errors: Errors are appended to it.
    """
    engine = getattr(strategy, "model", None) if strategy_kind(strategy) == "deepspeed" else None
    if not hasattr(engine, "save_checkpoint"):
        yield
        return

    def guarded(original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a failed write
            errors.append(error)

    def without_latest(original: Any, folder: Any, *args: Any, tag: Any, **kwargs: Any) -> Any:
        # Between the last barriers global rank 0 would write this file.
        saved = original(folder, *args, tag=tag, **{**kwargs, "save_latest": False})
        if strategy.is_global_zero:
            guarded(Path(folder, "latest").write_text, str(tag))
        return saved

    with ExitStack() as undo:
        undo.callback(ReplacedMethod(engine, "save_checkpoint", without_latest).undo)
        for owner, name in ((getattr(engine, "checkpoint_engine", None), "save"), (engine, "_copy_recovery_script")):
            if hasattr(owner, name):
                undo.callback(ReplacedMethod(owner, name, guarded).undo)
        yield


def is_failed_write(error: BaseException) -> bool:
    """Whether an error of a save says that a file could not be written, on this rank or, with DCP, on any."""
    # torch's CheckpointException is no Exception.
    return isinstance(error, (OSError, RuntimeError)) or type(error).__name__ == "CheckpointException"


def reasons_of(error: BaseException) -> str:
    """The type and text of an error; of DCP's error, those of each rank, without their tracebacks."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return f"{type(error).__name__}: {error}"
    found = (f"global_rank {rank}: {type(inner).__name__}: {inner}" for rank, (inner, _) in sorted(failures.items()))
    return "; ".join(found)


# An optimizer's states and a copy of the weights in single precision: Adam in mixed precision has the most.
_BYTES_PER_PARAMETER = 16


def state_bytes(trainer: Trainer) -> int:
    """How many bytes of model and optimizer states this rank saves, at most, as far as its parameters tell."""
    total = 0.0
    for parameter in strategy_of(trainer).lightning_module.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        # DeepSpeed's stage 3 leaves an empty tensor in place of a parameter.
        total += getattr(parameter, "ds_numel", 0) / trainer.world_size or local.numel()
    return int(total) * _BYTES_PER_PARAMETER


# Where Lightning calls torch.distributed.checkpoint (DCP).
_SAVE = "_distributed_checkpoint_save"


def saves_with_dcp(strategy: Any) -> bool:
    """Whether a strategy saves sharded checkpoints with DCP, as ``FSDPStrategy`` and ``ModelParallelStrategy`` can."""
    return bool(
        getattr(strategy, "_state_dict_type", None) == "sharded"
        or getattr(strategy, "_save_distributed_checkpoint", False)
    )


def has_dcp_storage(namespace: Namespace) -> bool:
    """Whether Lightning saves through a function that :func:`dcp_storage` can replace (2.2 and later)."""
    return bool(_modules(namespace))


@contextmanager
def dcp_storage(namespace: Namespace, save: Callable[[Any], None]) -> Iterator[None]:
    """Save to another storage than the folder that Lightning names, as long as the context lasts.

    No strategy of Lightning has an argument for it; see ``_distributed_checkpoint_save`` in
    ``lightning/fabric/strategies/fsdp.py``.

    Args:
        namespace: Lightning's namespace.
        save: Saves the state dict of the model and the optimizers, in place of Lightning's function.
    """
    with ExitStack() as undo:
        for module in _modules(namespace):
            undo.callback(ReplacedMethod(module, _SAVE, lambda original, state, path: save(state)).undo)
        yield


def save_dcp(state: Any, folder: str, group: Any) -> None:
    """Save shards as Lightning does, with the collectives of a process group. Collective: every rank must call it.

    Args:
        state: The state dict of the model and the optimizers.
        folder: Where to.
        group: The process group; ``None`` for the default one, or none in a single process.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, checkpoint_id=folder, process_group=group)


def _modules(namespace: Namespace) -> List[Any]:
    """The modules with the function: where it is defined, and where strategies import it to."""
    packages = (namespace.fabric, namespace.name)
    paths = [f"{package}.strategies.{name}" for package in packages for name in ("fsdp", "model_parallel")]
    loaded = [sys.modules.get(path) for path in paths]  # an older version has fewer
    return [module for module in loaded if hasattr(module, _SAVE)]
