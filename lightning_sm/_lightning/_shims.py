"""Every difference between Lightning's versions that our code would notice.

Each shim names the versions that it serves, the change upstream, and so the day when it can go.
"""

import importlib
import os
import sys
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
    "parse_words",
    "register_strategy",
    "replace_infinite_barrier",
    "save_config_arguments",
    "steps_taken",
    "strategy_of",
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
        Shim("steps_taken", (1, 5), (1, 6), f"{_PR}11805"),
        Shim(
            "heed_written_num_nodes",
            (1, 6),
            (1, 9),
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/trainer/connectors/"
            "accelerator_connector.py#L791",
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
