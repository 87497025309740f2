"""Lets the strategy of a single device ask the trainer's environment, which every other strategy does by itself."""

from typing import Any, Callable

from lightning_sm._lightning._namespaces import Namespace
from lightning_sm._lightning._shims import single_device_class

__all__ = ["ask_environment"]


def ask_environment(namespace: Namespace, check: Callable[[Any], None]) -> None:
    """Have the trainer's environment checked before a single device trains.

    Lightning takes such a process for the only one of the world, whatever its launcher says:
    ``lightning/pytorch/strategies/single_device.py``.

    Args:
        namespace: Lightning's namespace.
        check: Called with the environment that the ``Trainer`` chose, at the start of each ``fit``.
    """
    strategy_class: Any = single_device_class(namespace)
    if hasattr(strategy_class, "_lightning_sm_inherited"):
        return
    strategy_class._lightning_sm_inherited = strategy_class.setup_environment

    def setup_environment(self: Any) -> None:
        trainer = self.lightning_module.trainer
        if trainer.state.fn == "fit":
            check(trainer._accelerator_connector.cluster_environment)
        self._lightning_sm_inherited()

    strategy_class.setup_environment = setup_environment
