"""Every difference between Lightning's versions that our code would notice.

Each shim names the versions that it serves, the change upstream, and so the day when it can go.
"""

import functools
import importlib
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from lightning_sm._lightning._namespaces import Namespace

__all__ = [
    "SHIMS",
    "Shim",
    "add_any_data_module",
    "add_legacy_environment_methods",
    "backend_variable",
    "cli_base_path",
    "configs_must_be_whole",
    "ddp_base_path",
    "epochs_trained",
    "heed_written_num_nodes",
    "keep_cluster_environment",
    "innermost_wrapper",
    "keep_newest",
    "last_needs_best",
    "parse_words",
    "register_strategy",
    "replace_infinite_barrier",
    "resumes_within_epochs",
    "save_checkpoint_at_end",
    "save_by_time",
    "save_config_arguments",
    "save_last_as_file",
    "steps_taken",
    "strategy_of",
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
SHIMS = {
    shim.name: shim
    for shim in (
        Shim("add_legacy_environment_methods", (1, 5), (1, 6), f"{_PR}10103"),
        Shim("ddp_base_path", (1, 5), (1, 6), f"{_PR}11142"),
        Shim("register_strategy", (1, 5), (1, 6), f"{_PR}11233"),
        Shim("strategy_of", (1, 5), (1, 6), f"{_PR}11141"),
        Shim("epochs_trained", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("resumes_within_epochs", (1, 5), (1, 6), f"{_PR}8578"),
        Shim("train_loaders_method", (1, 5), (2, 0), f"{_PR}16726"),
        Shim("save_checkpoint_at_end", (1, 5), (1, 6), f"{_PR}11805"),
        Shim("steps_taken", (1, 5), (1, 6), f"{_PR}11805"),
        Shim(
            "heed_written_num_nodes",
            (1, 6),
            (1, 9),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/trainer/connectors/"
            "accelerator_connector.py#L791",
        ),
        Shim(
            "keep_cluster_environment",
            (1, 6),
            (1, 9),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/trainer/connectors/"
            "accelerator_connector.py#L783",
        ),
        Shim("backend_variable", (1, 5), (1, 8), f"{_PR}14693"),
        Shim("cli_base_path", (1, 5), (1, 7), f"{_PR}13767"),
        Shim("add_any_data_module", (1, 5), (1, 7), f"{_PR}12614"),
        Shim("parse_words", (1, 5), (1, 7), f"{_PR}12614"),
        Shim(
            "configs_must_be_whole",
            (1, 5),
            (1, 8),
            "https://github.com/omni-us/jsonargparse/blob/v4.21.0/CHANGELOG.rst",
        ),
        Shim("save_config_arguments", (1, 5), (1, 8), f"{_PR}14998"),
        Shim(
            "keep_newest",
            (1, 5),
            (1, 6),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.5.10/pytorch_lightning/callbacks/"
            "model_checkpoint.py#L700",
        ),
        Shim("innermost_wrapper", (1, 7), _OPEN, f"{_PR}13658"),
        Shim("save_last_as_file", (2, 1), (2, 2), f"{_PR}18748"),
        Shim("last_needs_best", (2, 6), _OPEN, f"{_PR}21244"),
        Shim("save_by_time", (2, 6), _OPEN, f"{_PR}21239"),
        Shim("replace_infinite_barrier", (2, 3), _OPEN, f"{_PR}19448"),
    )
}


def _needs(name: str, namespace: Namespace) -> bool:
    return SHIMS[name].serves(namespace.version)


def add_legacy_environment_methods(namespace: Namespace, environment: Any) -> None:
    """Give the environment the methods ``master_address()`` and ``master_port()`` that became properties in 1.6.

    Lightning 1.6 warns about classes that still have them, so they are added only where they are called.
    """
    if _needs("add_legacy_environment_methods", namespace):
        environment.master_address = lambda self: self.main_address
        environment.master_port = lambda self: self.main_port


def ddp_base_path(namespace: Namespace) -> str:
    """Where Lightning's own DDP class is; until 1.6 it is a training type plugin."""
    return "plugins:DDPPlugin" if _needs("ddp_base_path", namespace) else "strategies:DDPStrategy"


def cli_base_path(namespace: Namespace) -> str:
    """Where Lightning's CLI is."""
    return "utilities.cli:LightningCLI" if _needs("cli_base_path", namespace) else "cli:LightningCLI"


def register_strategy(namespace: Namespace, name: str, cls: type, description: str, **init_params: Any) -> None:
    """Register a strategy by name, in place of an older registration."""
    if _needs("register_strategy", namespace):
        registry = namespace.module("plugins").TrainingTypePluginsRegistry
    else:
        registry = namespace.module("strategies").StrategyRegistry
    registry.register(name, cls, description=description, override=True, **init_params)


def backend_variable(namespace: Namespace) -> Optional[str]:
    """The backend that ``PL_TORCH_DISTRIBUTED_BACKEND`` names, in the versions that read it; users set it."""
    if not _needs("backend_variable", namespace):
        return None
    return os.environ.get("PL_TORCH_DISTRIBUTED_BACKEND") or None


def strategy_of(trainer: Any) -> Any:
    """The trainer's strategy; in 1.5 it is called a training type plugin."""
    return trainer.strategy if hasattr(trainer, "strategy") else trainer.training_type_plugin


def resumes_within_epochs(namespace: Namespace) -> bool:
    """Whether a run that was interrupted within an epoch goes on in it; 1.5 goes on with the next epoch."""
    return not _needs("resumes_within_epochs", namespace)


def train_loaders_method(namespace: Namespace, trainer: Any) -> Tuple[Any, str]:
    """The object and its method that make the data loaders for training; until 2.0 the trainer does."""
    if _needs("train_loaders_method", namespace):
        return trainer, "reset_train_dataloader"
    return trainer.fit_loop, "setup_data"


def epochs_trained(namespace: Namespace, trainer: Any) -> int:
    """How many epochs a fit that has ended came to; 1.5 then counts the last one back."""
    epoch = int(trainer.current_epoch)
    if _needs("epochs_trained", namespace) and trainer.fit_loop.epoch_progress.total.completed:
        return epoch + 1
    return epoch


def steps_taken(namespace: Namespace, trainer: Any) -> int:
    """How many optimizer steps were taken, also within ``on_train_batch_end``, where 1.5 has not counted the last."""
    step = int(trainer.global_step)
    if _needs("steps_taken", namespace) and not trainer.fit_loop.epoch_loop._should_accumulate():
        return step + 1
    return step


def save_checkpoint_at_end(namespace: Namespace, trainer: Any, path: str) -> None:
    """Save a checkpoint when training has ended; 1.5 then counts a step too many, as its ``ModelCheckpoint`` knows."""
    ahead = 1 if _needs("save_checkpoint_at_end", namespace) else 0
    if ahead:
        trainer.fit_loop.global_step -= ahead
    trainer.save_checkpoint(path)
    if ahead:
        trainer.fit_loop.global_step += ahead


def heed_written_num_nodes(namespace: Namespace, strategy_class: Any) -> None:
    """Hand the number of nodes, which the ``Trainer`` writes past the property ``num_nodes``, to ``nodes_of_the_job``.

    Args:
        namespace: Lightning's namespace.
        strategy_class: A class with the method ``nodes_of_the_job``.
    """
    if not _needs("heed_written_num_nodes", namespace):
        return

    def write(self: Any, num_nodes: int) -> None:
        self._written_num_nodes = self.nodes_of_the_job(num_nodes)

    strategy_class._num_nodes = property(lambda self: self._written_num_nodes, write)


def keep_cluster_environment(namespace: Namespace, strategy_class: Any) -> None:
    """Let a strategy that is chosen by name keep the environment that it brings along.

    The ``Trainer`` puts its own choice in the place of it; from 1.9 on only where there is none.

    Args:
        namespace: Lightning's namespace.
        strategy_class: A class whose instances may bring a ``cluster_environment``.
    """
    if not _needs("keep_cluster_environment", namespace):
        return

    def write(self: Any, environment: Any) -> None:
        if getattr(self, "_kept_cluster_environment", None) is None:
            self._kept_cluster_environment = environment

    strategy_class.cluster_environment = property(lambda self: self._kept_cluster_environment, write)


def add_any_data_module(namespace: Namespace, parser: Any) -> None:
    """Let a config name any data module, which a CLI without a class of its own did not offer."""
    if not _needs("add_any_data_module", namespace) or any(action.dest == "data" for action in parser._actions):
        return
    parser.add_subclass_arguments(namespace.module().LightningDataModule, "data", fail_untyped=False, required=False)


def parse_words(namespace: Namespace, parser: Any, words: Sequence[str]) -> Any:
    """Parse these words; until 1.7 the parser reads ``sys.argv`` first and may fail there, whatever it is given."""
    given = sys.argv
    if _needs("parse_words", namespace):
        sys.argv = given[:1]
    try:
        return parser.parse_args(list(words))
    finally:
        sys.argv = given


def configs_must_be_whole(namespace: Namespace) -> bool:
    """Whether the parser refuses a config file whose class lacks an argument that a later one brings.

    So does jsonargparse 4.21, the newest that these versions work with.
    """
    return _needs("configs_must_be_whole", namespace)


def save_config_arguments(namespace: Namespace) -> Dict[str, Any]:
    """Arguments of the CLI that let it save its config over an older one, as a restarted job must."""
    if _needs("save_config_arguments", namespace):
        return {"save_config_overwrite": True}
    return {"save_config_kwargs": {"overwrite": True}}


def replace_infinite_barrier(namespace: Namespace) -> None:
    """Keep Lightning from making a gloo group beside a group that bears no other.

    Around ``prepare_data`` it makes one, to have a barrier without a time limit. The group's own barrier takes its
    place where the backend is ``smddp``, whose documentation rules out further groups.
    """
    if not _needs("replace_infinite_barrier", namespace):
        return
    fabric = "lightning.fabric" if namespace.name.startswith("lightning.") else "lightning_fabric"
    barrier = getattr(importlib.import_module(f"{fabric}.utilities.distributed"), "_InfiniteBarrier", None)
    if barrier is None or hasattr(barrier, "_lightning_sm_enter"):
        return
    barrier._lightning_sm_enter = barrier.__enter__

    def enter(self: Any) -> Any:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_backend() == "smddp":
            self.barrier = dist.barrier
            return self
        return self._lightning_sm_enter()

    barrier.__enter__ = enter


def keep_newest(namespace: Namespace) -> Dict[str, Any]:
    """Arguments by which a ``ModelCheckpoint`` keeps the newest two; 1.5 cannot monitor the step, and keeps one."""
    if _needs("keep_newest", namespace):
        return {"mode": "max"}
    return {"monitor": "step", "mode": "max", "save_top_k": 2}


def innermost_wrapper(namespace: Namespace, checkpoint_io: Any) -> Any:
    """The one of Lightning's wrapping ``CheckpointIO`` that holds the one which writes, or ``None``."""
    if not _needs("innermost_wrapper", namespace):
        return None
    wrapping = namespace.module("plugins.io.wrapper")._WrappingCheckpointIO
    found = None
    while isinstance(checkpoint_io, wrapping):
        found, checkpoint_io = checkpoint_io, checkpoint_io.checkpoint_io
    return found


def save_last_as_file(namespace: Namespace, checkpoint: Any) -> None:
    """Let a ``ModelCheckpoint`` with ``save_last=True`` write a file where it would make a link."""
    if _needs("save_last_as_file", namespace):
        checkpoint._link_checkpoint = functools.partial(_save_instead_of_link, checkpoint.save_weights_only)


def _save_instead_of_link(weights_only: bool, trainer: Any, filepath: str, linkpath: str) -> None:
    trainer.save_checkpoint(linkpath, weights_only)


def last_needs_best(namespace: Namespace) -> bool:
    """Whether ``save_last`` is heeded at the end of an epoch only where one of the best was saved, too."""
    return _needs("last_needs_best", namespace)


def save_by_time(namespace: Namespace, trainer: Any, pl_module: Any) -> None:
    """Save what is due by time after a training batch of manual optimization, where Lightning forgets to look."""
    if not _needs("save_by_time", namespace) or pl_module.automatic_optimization:
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
