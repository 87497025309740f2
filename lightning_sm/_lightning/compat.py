"""Which versions need which shim.

``ModelCheckpoint`` and ``CheckpointIO``.

``LightningCLI`` and its parser.

Loops and what they count.
"""

import functools
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

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
    "write_over_own",
    "add_any_data_module",
    "cli_base_path",
    "parse_words",
    "save_config_arguments",
    "epochs_trained",
    "resumes_within_epochs",
    "save_checkpoint_at_end",
    "saves_before_epoch_hooks",
    "signal_connector_of",
    "steps_taken",
    "train_loaders_method",
]


@dataclass(frozen=True)
class Shim:
    """A difference between versions.

    Args:
        name: The function here that bridges it.
        since: The first version, as major and minor, that needs it.
        until: The first version that needs it no more; 99.0 if the newest still does.
        link: The change or file upstream.
    """

    name: str
    since: Tuple[int, int]
    until: Tuple[int, int]
    link: str

    def serves(self, version: Tuple[int, int]) -> bool:
        """Whether a Lightning of this version needs the shim."""
        return self.since <= version < self.until


_OPEN = (99, 0)
_PR = "https://github.com/Lightning-AI/pytorch-lightning/pull/"
_CONNECTOR = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/trainer/connectors/"
    "accelerator_connector.py"
)
SHIMS = {
    shim.name: shim
    for shim in (
        Shim("add_legacy_environment_methods", (1, 5), (1, 6), f"{_PR}10103"),
        Shim("ddp_base_path", (1, 5), (1, 6), f"{_PR}11142"),
        Shim("register_strategy", (1, 5), (1, 6), f"{_PR}11233"),
        Shim("single_device_class", (1, 5), (1, 6), f"{_PR}11182"),
        Shim("strategy_of", (1, 5), (1, 6), f"{_PR}11141"),
        Shim("signal_connector_of", (1, 5), (1, 6), f"{_PR}11513"),
        Shim("epochs_trained", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("resumes_within_epochs", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("train_loaders_method", (1, 5), (2, 0), f"{_PR}16726"),
        Shim("save_checkpoint_at_end", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("steps_taken", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("apply_num_nodes", (1, 6), (1, 9), f"{_CONNECTOR}#L791"),
        Shim("keep_cluster_environment", (1, 6), (1, 9), f"{_CONNECTOR}#L783"),
        Shim("backend_variable", (1, 5), (1, 8), f"{_PR}14693"),
        Shim("cli_base_path", (1, 5), (1, 7), f"{_PR}13767"),
        Shim("add_any_data_module", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("parse_words", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("save_config_arguments", (1, 5), (1, 8), f"{_PR}14998"),
        Shim(
            "keep_newest",
            (1, 5),
            (1, 6),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.5.10/pytorch_lightning/callbacks/"
            "model_checkpoint.py#L700",
        ),
        Shim("write_over_own", (1, 5), (2, 2), f"{_PR}19064"),
        Shim(
            "saved_by_all_ranks",
            (1, 5),
            (2, 1),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/2.0.9/src/lightning/pytorch/trainer/trainer.py#L1296",
        ),
        Shim("saves_before_epoch_hooks", (1, 5), (2, 0), f"{_PR}16567"),
        Shim("innermost_wrapper", (1, 7), _OPEN, f"{_PR}13658"),
        Shim("save_last_as_file", (2, 1), (2, 2), f"{_PR}18748"),
        Shim("last_needs_best", (2, 6), _OPEN, f"{_PR}21244"),
        Shim("save_by_time", (2, 6), _OPEN, f"{_PR}21239"),
        Shim("replace_infinite_barrier", (2, 3), _OPEN, f"{_PR}19448"),
    )
}


def needs(name: str, namespace: Namespace) -> bool:
    """Whether the Lightning of a namespace needs a shim."""
    return SHIMS[name].serves(namespace.version)


def innermost_wrapper(namespace: Namespace, checkpoint_io: Any) -> Any:
    """The one of Lightning's wrapping ``CheckpointIO`` that holds the one which writes, or ``None``."""
    if not needs("innermost_wrapper", namespace):
        return None
    wrapping = namespace.module("plugins.io.wrapper")._WrappingCheckpointIO
    found = None
    while isinstance(checkpoint_io, wrapping):
        found, checkpoint_io = checkpoint_io, checkpoint_io.checkpoint_io
    return found


def keep_newest(namespace: Namespace) -> Dict[str, Any]:
    """Arguments by which a ``ModelCheckpoint`` keeps the newest two; 1.5 cannot monitor the step, and keeps one."""
    if needs("keep_newest", namespace):
        return {"mode": "max"}
    return {"monitor": "step", "mode": "max", "save_top_k": 2}


def last_needs_best(namespace: Namespace) -> bool:
    """Whether ``save_last`` is heeded at the end of an epoch only where one of the best was saved, too."""
    return needs("last_needs_best", namespace)


def save_by_time(namespace: Namespace, trainer: Any, pl_module: Any) -> None:
    """Save what is due by time after a training batch of manual optimization, where Lightning forgets to look."""
    if not needs("save_by_time", namespace) or pl_module.automatic_optimization:
        return
    for checkpoint in trainer.checkpoint_callbacks:
        interval = getattr(checkpoint, "_train_time_interval", None)
        if interval is None or checkpoint._should_skip_saving_checkpoint(trainer):
            continue
        now = time.monotonic()
        candidates = checkpoint._monitor_candidates(trainer)
        is_due = now - checkpoint._last_time_checked >= interval.total_seconds()
        # The hosts' clocks differ, and all of them take part in a save.
        if checkpoint.monitor in (None, *candidates) and trainer.strategy.broadcast(is_due):
            checkpoint._last_time_checked = now
            checkpoint._save_topk_checkpoint(trainer, candidates)
            checkpoint._save_last_checkpoint(trainer, candidates)


def save_last_as_file(namespace: Namespace, checkpoint: Any) -> None:
    """Let a ``ModelCheckpoint`` with ``save_last=True`` write a file where it would make a link."""
    if needs("save_last_as_file", namespace):
        checkpoint._link_checkpoint = functools.partial(_save_instead_of_link, checkpoint.save_weights_only)


def _save_instead_of_link(weights_only: bool, trainer: Trainer, filepath: str, linkpath: str) -> None:
    trainer.save_checkpoint(linkpath, weights_only)


def saved_by_all_ranks(namespace: Namespace, trainer: Any, caller: int) -> bool:
    """Whether a call of ``Trainer.save_checkpoint`` is one that every rank makes, so that the ranks may talk.

    Since 2.1 it ends with a barrier. Before, a program may let one rank alone save, and Lightning's and our own
    callbacks do not. After an error there may be one rank alone.

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


def write_over_own(namespace: Namespace, checkpoint: Any) -> None:
    """Let a ``ModelCheckpoint`` without a monitor write over its own file, where it takes turns between two names.

    A run that is interrupted and goes on would then leave one more file each time, for its checkpoint may know the
    other name.
    """
    if needs("write_over_own", namespace):
        checkpoint.file_exists = functools.partial(_another_exists, checkpoint)


def _another_exists(checkpoint: Any, filepath: Any, trainer: Trainer) -> bool:
    return bool(filepath != checkpoint.best_model_path and type(checkpoint).file_exists(checkpoint, filepath, trainer))


def add_any_data_module(namespace: Namespace, parser: Any) -> None:
    """Let a config name any data module, which a CLI without a class of its own did not offer."""
    if not needs("add_any_data_module", namespace) or any(action.dest == "data" for action in parser._actions):
        return
    parser.add_subclass_arguments(namespace.module().LightningDataModule, "data", fail_untyped=False, required=False)


def cli_base_path(namespace: Namespace) -> str:
    """Where Lightning's CLI is."""
    return "utilities.cli:LightningCLI" if needs("cli_base_path", namespace) else "cli:LightningCLI"


def parse_words(namespace: Namespace, parser: Any, words: Sequence[str], *, defaults: bool = True) -> Any:
    """Parse these words; until 1.7 the parser reads ``sys.argv`` first and may fail there, whatever it is given."""
    given = sys.argv
    if needs("parse_words", namespace):
        sys.argv = given[:1]
    try:
        return parser.parse_args(list(words), defaults=defaults)
    finally:
        sys.argv = given


def save_config_arguments(namespace: Namespace) -> Dict[str, Any]:
    """Arguments of the CLI that let it save its config over an older one, as a restarted job must."""
    if needs("save_config_arguments", namespace):
        return {"save_config_overwrite": True}
    return {"save_config_kwargs": {"overwrite": True}}


def epochs_trained(namespace: Namespace, trainer: Trainer) -> int:
    """How many epochs a fit that has ended came to; 1.5 then counts the last one back."""
    epoch = int(trainer.current_epoch)
    if needs("epochs_trained", namespace) and trainer.fit_loop.epoch_progress.total.completed:
        return epoch + 1
    return epoch


def resumes_within_epochs(namespace: Namespace) -> bool:
    """Whether a run that was interrupted within an epoch goes on in it; 1.5 goes on with the next epoch."""
    return not needs("resumes_within_epochs", namespace)


def save_checkpoint_at_end(namespace: Namespace, trainer: Trainer, path: str) -> None:
    """Save a checkpoint when training has ended; 1.5 then counts a step too many, as its ``ModelCheckpoint`` knows."""
    ahead = 1 if needs("save_checkpoint_at_end", namespace) else 0
    if ahead:
        trainer.fit_loop.global_step -= ahead
    trainer.save_checkpoint(path)
    if ahead:
        trainer.fit_loop.global_step += ahead


def steps_taken(namespace: Namespace, trainer: Trainer) -> int:
    """How many optimizer steps were taken, also within ``on_train_batch_end``, where 1.5 has not counted the last."""
    step = int(trainer.global_step)
    if needs("steps_taken", namespace) and not trainer.fit_loop.epoch_loop._should_accumulate():
        return step + 1
    return step


def train_loaders_method(namespace: Namespace, trainer: Trainer) -> Tuple[Any, str]:
    """The object and its method that make the data loaders for training; until 2.0 the trainer does."""
    if needs("train_loaders_method", namespace):
        return trainer, "reset_train_dataloader"
    return trainer.fit_loop, "setup_data"


def saves_before_epoch_hooks(namespace: Namespace) -> bool:
    """Whether checkpoints at the end of an epoch are written before the model's own hook, which may reset metrics."""
    return needs("saves_before_epoch_hooks", namespace)


def signal_connector_of(trainer: Any) -> Any:
    """What handles signals for the trainer; in 1.5 it bears another name."""
    return trainer._signal_connector if hasattr(trainer, "_signal_connector") else trainer.signal_connector
