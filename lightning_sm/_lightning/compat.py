"""Shims for differences between Lightning's versions, and the table of them all.

The functions here concern checkpoints, the CLI and the loops; those for strategies are in ``compat_strategies``, those
for progress lines in ``train_progress``. A shim may be removed when the oldest supported Lightning is at least
``Shim.until``.
"""

import functools
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "SHIMS",
    "Shim",
    "needs",
    "innermost_wrapper",
    "keep_newest",
    "last_needs_best",
    "save_by_time",
    "save_last_as_file",
    "saved_by_all_ranks",
    "overwrite_own_file",
    "add_any_data_module",
    "cli_base_path",
    "parse_words",
    "save_config_arguments",
    "connector_of_loggers",
    "epochs_trained",
    "first_logger",
    "logged_step",
    "loggers_of",
    "resumes_within_epochs",
    "returns_callback_state",
    "save_checkpoint_at_end",
    "saves_before_epoch_hooks",
    "signal_connector_of",
    "steps_taken",
    "train_loaders_method",
]


@dataclass(frozen=True)
class Shim:
    """A difference between versions of Lightning.

    Args:
        name: The function that handles it, in a module of this folder.
        since: The first version, as major and minor, that needs it.
        until: The first version that does not need it; 99.0 while the newest release needs it.
        link: The upstream change, or the upstream code if no change removed the difference.
    """

    name: str
    since: Tuple[int, int]
    until: Tuple[int, int]
    link: str

    def serves(self, version: Tuple[int, int]) -> bool:
        """Whether a Lightning of this version needs the shim."""
        return self.since <= version < self.until


_OPEN = (99, 0)
_REPOSITORY = "https://github.com/Lightning-AI/pytorch-lightning"
_PR = f"{_REPOSITORY}/pull/"
_BLOB = f"{_REPOSITORY}/blob/"
_CONNECTOR = f"{_BLOB}1.8.6/src/pytorch_lightning/trainer/connectors/accelerator_connector.py"
_CALLBACKS = f"{_BLOB}2.6.1/src/lightning/pytorch/trainer/connectors/callback_connector.py"
_LOGGER = "1.6.3/pytorch_lightning/trainer/connectors/logger_connector/logger_connector.py#L122"
_NATIVE = "1.8.6/src/pytorch_lightning/strategies/fully_sharded_native.py"
_CHECKPOINT = "1.5.10/pytorch_lightning/callbacks/model_checkpoint.py#L700"
SHIMS = {
    shim.name: shim
    for shim in (
        Shim("add_legacy_environment_methods", (1, 5), (1, 6), f"{_PR}10103"),
        Shim("ddp_base_path", (1, 5), (1, 6), f"{_PR}11142"),
        Shim("fsdp_base_path", (1, 8), (2, 0), f"{_BLOB}{_NATIVE}"),
        Shim("register_strategy", (1, 5), (1, 6), f"{_PR}11233"),
        Shim("single_device_class", (1, 5), (1, 6), f"{_PR}11182"),
        Shim("strategy_of", (1, 5), (1, 6), f"{_PR}11141"),
        Shim("signal_connector_of", (1, 5), (1, 6), f"{_PR}11513"),
        Shim("connector_of_loggers", (1, 5), (1, 6), f"{_BLOB}1.5.10/pytorch_lightning/trainer/trainer.py#L450"),
        Shim("logged_step", (1, 5), (1, 7), f"{_BLOB}{_LOGGER}"),
        Shim("epochs_trained", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("returns_callback_state", (1, 5), (1, 6), f"{_PR}12232"),
        Shim("loggers_of", (1, 5), (1, 6), f"{_PR}11683"),
        Shim("resumes_within_epochs", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("train_loaders_method", (1, 5), (2, 0), f"{_PR}16726"),
        Shim("save_checkpoint_at_end", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("steps_taken", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("epoch_end_step", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("apply_num_nodes", (1, 6), (1, 9), f"{_CONNECTOR}#L791"),
        Shim("keep_cluster_environment", (1, 6), (1, 9), f"{_CONNECTOR}#L783"),
        Shim("backend_variable", (1, 5), (1, 8), f"{_PR}14693"),
        Shim("cli_base_path", (1, 5), (1, 7), f"{_PR}13767"),
        Shim("add_any_data_module", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("parse_words", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("save_config_arguments", (1, 5), (1, 8), f"{_PR}14998"),
        Shim("keep_newest", (1, 5), (1, 6), f"{_BLOB}{_CHECKPOINT}"),
        Shim("overwrite_own_file", (1, 5), (2, 2), f"{_PR}19064"),
        Shim("saved_by_all_ranks", (1, 5), (2, 1), f"{_BLOB}2.0.9/src/lightning/pytorch/trainer/trainer.py#L1296"),
        Shim("saves_before_epoch_hooks", (1, 5), (2, 0), f"{_PR}16567"),
        Shim("progress_bar_base", (1, 5), (2, 0), f"{_PR}17058"),
        Shim("around_fetches", (1, 5), (1, 7), f"{_BLOB}1.6.5/pytorch_lightning/utilities/fetching.py#L271"),
        Shim("innermost_wrapper", (1, 7), _OPEN, f"{_PR}13658"),
        Shim("save_last_as_file", (2, 1), (2, 2), f"{_PR}18748"),
        Shim("drop_tips", (2, 5), _OPEN, _CALLBACKS),
        Shim("plain_model_summary", (2, 6), _OPEN, _CALLBACKS),
        Shim("last_needs_best", (2, 6), _OPEN, f"{_PR}21244"),
        Shim("save_by_time", (2, 6), _OPEN, f"{_PR}21239"),
        Shim("skip_hooks", (1, 7), _OPEN, f"{_BLOB}2.5.5/src/lightning/pytorch/trainer/call.py"),
        Shim("replace_infinite_barrier", (2, 3), _OPEN, f"{_PR}19448"),
    )
}


def needs(name: str, namespace: Namespace) -> bool:
    """Whether the Lightning of a namespace needs a shim."""
    return SHIMS[name].serves(namespace.version)


def innermost_wrapper(namespace: Namespace, checkpoint_io: Any) -> Any:
    """The innermost of Lightning's wrapping ``CheckpointIO``, whose ``checkpoint_io`` writes; ``None`` without one."""
    if not needs("innermost_wrapper", namespace):
        return None
    wrapping = namespace.module("plugins.io.wrapper")._WrappingCheckpointIO
    found = None
    while isinstance(checkpoint_io, wrapping):
        found, checkpoint_io = checkpoint_io, checkpoint_io.checkpoint_io
    return found


def keep_newest(namespace: Namespace) -> Dict[str, Any]:
    """Arguments of a ``ModelCheckpoint`` that keeps the newest two files; 1.5 cannot monitor the step and keeps one."""
    if needs("keep_newest", namespace):
        return {"mode": "max"}
    return {"monitor": "step", "mode": "max", "save_top_k": 2}


def last_needs_best(namespace: Namespace) -> bool:
    """Whether ``save_last`` takes effect at the end of an epoch only if one of the best was saved as well."""
    return needs("last_needs_best", namespace)


def save_by_time(namespace: Namespace, trainer: Any, pl_module: Any) -> None:
    """Save checkpoints with ``train_time_interval`` after a batch of manual optimization, where Lightning does not."""
    if not needs("save_by_time", namespace) or pl_module.automatic_optimization:
        return
    for checkpoint in trainer.checkpoint_callbacks:
        interval = getattr(checkpoint, "_train_time_interval", None)
        if interval is None or checkpoint._should_skip_saving_checkpoint(trainer):
            continue
        now = time.monotonic()
        candidates = checkpoint._monitor_candidates(trainer)
        is_due = now - checkpoint._last_time_checked >= interval.total_seconds()
        # A save is collective, and the clocks of hosts differ.
        if checkpoint.monitor in (None, *candidates) and trainer.strategy.broadcast(is_due):
            checkpoint._last_time_checked = now
            checkpoint._save_topk_checkpoint(trainer, candidates)
            checkpoint._save_last_checkpoint(trainer, candidates)


def save_last_as_file(namespace: Namespace, checkpoint: Any) -> None:
    """Make a ``ModelCheckpoint`` with ``save_last=True`` write a file instead of a symbolic link."""
    if needs("save_last_as_file", namespace):
        checkpoint._link_checkpoint = functools.partial(_save_instead_of_link, checkpoint.save_weights_only)


def _save_instead_of_link(weights_only: bool, trainer: Trainer, filepath: str, linkpath: str) -> None:
    trainer.save_checkpoint(linkpath, weights_only)


def saved_by_all_ranks(namespace: Namespace, trainer: Any, caller: int) -> bool:
    """Whether every rank makes this call of ``Trainer.save_checkpoint``, so that collectives are allowed in it.

    Since 2.1 it ends with a barrier. Before, a user's program may call it on one rank; Lightning's callbacks and ours
    call it on every rank. After an exception it may be called on one rank.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        caller: How many frames above this one the caller is.
    """
    if trainer.interrupted:
        return False
    if trainer.world_size == 1 or not needs("saved_by_all_ranks", namespace):
        return True
    module = str(sys._getframe(caller).f_globals.get("__name__", ""))
    return module.split(".")[0] in (namespace.name.split(".")[0], "lightning_sm")


def overwrite_own_file(namespace: Namespace, checkpoint: Any) -> None:
    """Make a ``ModelCheckpoint`` without a monitor overwrite its own file instead of alternating between two names.

    A resumed run would otherwise leave one more file each time, because its checkpoint may contain the other name.
    """
    if needs("overwrite_own_file", namespace):
        checkpoint.file_exists = functools.partial(_another_exists, checkpoint)


def _another_exists(checkpoint: Any, filepath: Any, trainer: Trainer) -> bool:
    return bool(filepath != checkpoint.best_model_path and type(checkpoint).file_exists(checkpoint, filepath, trainer))


def add_any_data_module(namespace: Namespace, parser: Any) -> None:
    """Add the group ``data`` for any data module to a CLI without a data module class, where Lightning does not."""
    if not needs("add_any_data_module", namespace) or any(action.dest == "data" for action in parser._actions):
        return
    parser.add_subclass_arguments(namespace.module().LightningDataModule, "data", fail_untyped=False, required=False)


def cli_base_path(namespace: Namespace) -> str:
    """The module and name of ``LightningCLI``."""
    return "utilities.cli:LightningCLI" if needs("cli_base_path", namespace) else "cli:LightningCLI"


def parse_words(namespace: Namespace, parser: Any, words: Sequence[str], *, defaults: bool = True) -> Any:
    """Parse these arguments; before 1.7 the parser also parses ``sys.argv``, which may fail."""
    given = sys.argv
    if needs("parse_words", namespace):
        sys.argv = given[:1]
    try:
        return parser.parse_args(list(words), defaults=defaults)
    finally:
        sys.argv = given


def save_config_arguments(namespace: Namespace) -> Dict[str, Any]:
    """Arguments of the CLI with which it overwrites the config file of an earlier run, as a restarted job must."""
    if needs("save_config_arguments", namespace):
        return {"save_config_overwrite": True}
    return {"save_config_kwargs": {"overwrite": True}}


def epochs_trained(namespace: Namespace, trainer: Trainer) -> int:
    """The epochs of a fit that has ended; 1.5 then decrements its counter."""
    epoch = int(trainer.current_epoch)
    if needs("epochs_trained", namespace) and trainer.fit_loop.epoch_progress.total.completed:
        return epoch + 1
    return epoch


def resumes_within_epochs(namespace: Namespace) -> bool:
    """Whether Lightning resumes within an epoch; 1.5 resumes at the next epoch."""
    return not needs("resumes_within_epochs", namespace)


def returns_callback_state(namespace: Namespace) -> bool:
    """Whether a callback's state passes through ``on_save_checkpoint`` instead of ``state_dict``."""
    return needs("returns_callback_state", namespace)


def save_checkpoint_at_end(namespace: Namespace, trainer: Trainer, path: str) -> None:
    """Save a checkpoint after training; the step of 1.5 is then too high by one, as in its ``ModelCheckpoint``."""
    excess = 1 if needs("save_checkpoint_at_end", namespace) else 0
    if excess:
        trainer.fit_loop.global_step -= excess
    trainer.save_checkpoint(path)
    if excess:
        trainer.fit_loop.global_step += excess


def steps_taken(namespace: Namespace, trainer: Trainer) -> int:
    """The optimizer steps taken; within ``on_train_batch_end`` 1.5 has not counted the last one."""
    step = int(trainer.global_step)
    if needs("steps_taken", namespace) and not trainer.fit_loop.epoch_loop._should_accumulate():
        return step + 1
    return step


def train_loaders_method(namespace: Namespace, trainer: Trainer) -> Tuple[Any, str]:
    """The object and the name of its method that create the training data loaders; before 2.0 the trainer's."""
    if needs("train_loaders_method", namespace):
        return trainer, "reset_train_dataloader"
    return trainer.fit_loop, "setup_data"


def saves_before_epoch_hooks(namespace: Namespace) -> bool:
    """Whether checkpoints at the end of an epoch are saved before the model's hook, which may reset metrics."""
    return needs("saves_before_epoch_hooks", namespace)


def signal_connector_of(trainer: Any) -> Any:
    """The trainer's signal connector, which has another name in 1.5."""
    return trainer._signal_connector if hasattr(trainer, "_signal_connector") else trainer.signal_connector


def connector_of_loggers(trainer: Any) -> Any:
    """The trainer's logger connector, which has another name in 1.5."""
    return trainer._logger_connector if hasattr(trainer, "_logger_connector") else trainer.logger_connector


def loggers_of(trainer: Any) -> List[Any]:
    """All loggers of a trainer; several ones are a ``LoggerCollection`` in 1.5."""
    if hasattr(trainer, "loggers"):
        return list(trainer.loggers)
    return [] if trainer.logger is None else list(getattr(trainer.logger, "_logger_iterable", [trainer.logger]))


def first_logger(trainer: Any) -> Any:
    """The first logger of a trainer, or ``None``."""
    return next(iter(loggers_of(trainer)), None)


def logged_step(trainer: Any) -> int:
    """The step that loggers get for metrics of training; before 1.6.4 the number of optimizer steps."""
    return int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))
