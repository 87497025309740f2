"""What the level *core* needs: names and counters of Lightning 1.5.10 that are other ones in 1.9.5 and later.

With the end of Lightning 1.5 each function here is replaced by what it returns for 1.9.5, but for what is said at it.
"""

import os
import sys
from typing import Any, Dict, Optional, Sequence, Tuple

from lightning_sm._lightning.namespaces import FABRICS, Namespace

__all__ = [
    "add_any_data_module",
    "add_names_of_environment",
    "add_names_of_strategy",
    "backend_variable",
    "cli_base_path",
    "connector_of",
    "epochs_trained",
    "excess_step",
    "logged_step",
    "parse_args",
    "registry_of_strategies",
    "save_config_arguments",
    "skips_missing_hooks",
    "steps_taken",
    "strategy_of",
    "strategy_path",
]


def _is_old(namespace: Namespace) -> bool:
    return namespace.version < (1, 6)


# Strategies are plugins in 1.5: https://github.com/Lightning-AI/pytorch-lightning/pull/11141 and 11233


def strategy_of(trainer: Any) -> Any:
    """``trainer.strategy``."""
    return trainer.strategy if hasattr(trainer, "strategy") else trainer.training_type_plugin


def strategy_path(namespace: Namespace, kind: str) -> str:
    """The module and name of a strategy, such as ``DDPStrategy`` for ``DDP``."""
    return f"plugins:{kind}Plugin" if _is_old(namespace) else f"strategies:{kind}Strategy"


def registry_of_strategies(namespace: Namespace) -> Tuple[Any, Any, str]:
    """The registry of strategies, their base class, and the key of the class in an entry of the registry."""
    if _is_old(namespace):
        module: Any = namespace.module("plugins")
        return module.TrainingTypePluginsRegistry, module.TrainingTypePlugin, "plugin"
    module = namespace.module("strategies")
    registry = module.STRATEGY_REGISTRY if namespace in FABRICS else module.StrategyRegistry
    return registry, module.Strategy, "strategy"


def add_names_of_environment(namespace: Namespace, environment: Any) -> None:
    """Add the methods ``master_address`` and ``master_port``, of whose presence 1.6 and later warn.

    https://github.com/Lightning-AI/pytorch-lightning/pull/10103
    """
    if _is_old(namespace):
        environment.master_address = lambda self: self.main_address
        environment.master_port = lambda self: self.main_port


def add_names_of_strategy(namespace: Namespace, strategy_class: Any) -> type:
    """Add what 1.5 asks a ``DDPPlugin`` for: the backend by another name, and a number of processes that it may set."""
    if _is_old(namespace):
        strategy_class.torch_distributed_backend = property(lambda self: self._get_process_group_backend())
        strategy_class.num_processes = property(lambda self: len(self.parallel_devices or ()), lambda self, value: None)
    return strategy_class  # type: ignore[no-any-return]


def backend_variable(namespace: Namespace) -> Optional[str]:
    """The backend in ``PL_TORCH_DISTRIBUTED_BACKEND``, which users set, in the versions that read it."""
    return (os.environ.get("PL_TORCH_DISTRIBUTED_BACKEND") or None) if _is_old(namespace) else None


# The command line: https://github.com/Lightning-AI/pytorch-lightning/pull/12614, 13767 and 14998


def cli_base_path(namespace: Namespace) -> str:
    """The module and name of ``LightningCLI``."""
    return "utilities.cli:LightningCLI" if _is_old(namespace) else "cli:LightningCLI"


def add_any_data_module(namespace: Namespace, parser: Any) -> None:
    """Add the group ``data`` for any data module to a CLI without a data module class."""
    if _is_old(namespace) and not any(action.dest == "data" for action in parser._actions):
        data_module: Any = namespace.module().LightningDataModule
        parser.add_subclass_arguments(data_module, "data", fail_untyped=False, required=False)


def parse_args(namespace: Namespace, parser: Any, args: Sequence[str], *, defaults: bool = True) -> Any:
    """Parse these arguments; the parser of 1.5 also parses ``sys.argv``, which may fail."""
    given = sys.argv
    if _is_old(namespace):
        sys.argv = given[:1]
    try:
        return parser.parse_args(list(args), defaults=defaults)
    finally:
        sys.argv = given


def save_config_arguments(namespace: Namespace) -> Dict[str, Any]:
    """Arguments of the CLI with which it overwrites the config file of an earlier run, as a restarted job must."""
    return {"save_config_overwrite": True} if _is_old(namespace) else {"save_config_kwargs": {"overwrite": True}}


# The loops' counters: https://github.com/Lightning-AI/pytorch-lightning/pull/8578 and 11805


def epochs_trained(namespace: Namespace, trainer: Any) -> int:
    """The epochs of a fit that has ended; 1.5 then decrements its counter."""
    has_trained = _is_old(namespace) and trainer.fit_loop.epoch_progress.total.completed
    return int(trainer.current_epoch) + bool(has_trained)


def steps_taken(namespace: Namespace, trainer: Any) -> int:
    """The optimizer steps taken; within ``on_train_batch_end`` 1.5 has not counted the last one."""
    is_behind = _is_old(namespace) and not trainer.fit_loop.epoch_loop._should_accumulate()
    return int(trainer.global_step) + bool(is_behind)


def excess_step(namespace: Namespace) -> int:
    """By how much the step of a checkpoint that is made after training is too high, as in 1.5's ``ModelCheckpoint``."""
    return int(_is_old(namespace))


def logged_step(trainer: Any) -> int:
    """The step that loggers get for metrics of training; 1.5 counts optimizer steps only."""
    return int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))


# Parts of the trainer: https://github.com/Lightning-AI/pytorch-lightning/pull/11513, 11683 and 12232


def connector_of(trainer: Any, name: str) -> Any:
    """The trainer's connector of this name: ``checkpoint``, ``logger`` or ``signal``."""
    attribute = f"_{name}_connector"
    return getattr(trainer, attribute if hasattr(trainer, attribute) else attribute[1:])


def skips_missing_hooks(namespace: Namespace) -> bool:
    """Whether hooks of callbacks that are ``None`` are skipped, instead of an error."""
    return not _is_old(namespace)
