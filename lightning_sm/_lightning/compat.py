"""Shims for differences between Lightning's versions, and the table of them all.

The functions here concern checkpoints, the CLI and the loops; those for strategies are in ``compat_strategies``, those
for progress lines in ``train_progress``. A shim may be removed when the oldest supported Lightning is at least
``Shim.until``.
"""

import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "SHIMS",
    "Shim",
    "needs",
    "innermost_wrapper",
    "add_any_data_module",
    "cli_base_path",
    "parse_words",
    "save_config_arguments",
    "connector_of_loggers",
    "epochs_trained",
    "excess_step",
    "first_logger",
    "logged_step",
    "loggers_of",
    "returns_callback_state",
    "signal_connector_of",
    "steps_taken",
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
_CALLBACKS = f"{_BLOB}2.6.1/src/lightning/pytorch/trainer/connectors/callback_connector.py"
_LOGGER = "1.6.3/pytorch_lightning/trainer/connectors/logger_connector/logger_connector.py#L122"
_NATIVE = "1.8.6/src/pytorch_lightning/strategies/fully_sharded_native.py"
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
        Shim("excess_step", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("steps_taken", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("epoch_end_step", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("backend_variable", (1, 5), (1, 8), f"{_PR}14693"),
        Shim("cli_base_path", (1, 5), (1, 7), f"{_PR}13767"),
        Shim("add_any_data_module", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("parse_words", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("save_config_arguments", (1, 5), (1, 8), f"{_PR}14998"),
        Shim("progress_bar_base", (1, 5), (2, 0), f"{_PR}17058"),
        Shim("around_fetches", (1, 5), (1, 7), f"{_BLOB}1.6.5/pytorch_lightning/utilities/fetching.py#L271"),
        Shim("innermost_wrapper", (1, 7), _OPEN, f"{_PR}13658"),
        Shim("drop_tips", (2, 5), _OPEN, _CALLBACKS),
        Shim("plain_model_summary", (2, 6), _OPEN, _CALLBACKS),
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


def excess_step(namespace: Namespace) -> int:
    """By how much the step of a checkpoint that is made after training is too high, as in 1.5's ``ModelCheckpoint``."""
    return int(needs("excess_step", namespace))


def returns_callback_state(namespace: Namespace) -> bool:
    """Whether a callback's state passes through ``on_save_checkpoint`` instead of ``state_dict``."""
    return needs("returns_callback_state", namespace)


def steps_taken(namespace: Namespace, trainer: Trainer) -> int:
    """The optimizer steps taken; within ``on_train_batch_end`` 1.5 has not counted the last one."""
    step = int(trainer.global_step)
    if needs("steps_taken", namespace) and not trainer.fit_loop.epoch_loop._should_accumulate():
        return step + 1
    return step


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
