"""Which of Lightning's tests judge us, and where they are known to end differently."""

from dataclasses import dataclass
from typing import Dict

__all__ = ["EXPECTED", "SUITES", "Suite"]


@dataclass(frozen=True)
class Suite:
    """One file of Lightning's tests.

    Args:
        path: The file, below Lightning's folder ``tests``.
        swapped: Whether our classes take the place of theirs; else our package is imported and nothing more.
    """

    path: str
    swapped: bool = True

    @property
    def name(self) -> str:
        """The name by which it is chosen."""
        parts = self.path.split("/")
        stem = parts[-1][len("test_") : -len(".py")]
        return f"fabric_{stem}" if parts[0] == "tests_fabric" else stem


SUITES = (
    Suite("tests_fabric/plugins/environments/test_lightning.py"),
    Suite("tests_fabric/utilities/test_distributed.py"),
    Suite("tests_pytorch/plugins/test_cluster_integration.py"),
    Suite("tests_pytorch/strategies/test_registry.py"),
    Suite("tests_pytorch/strategies/test_ddp.py"),
    Suite("tests_pytorch/strategies/test_ddp_integration.py"),
    Suite("tests_pytorch/strategies/test_ddp_integration_comm_hook.py"),
    Suite("tests_pytorch/trainer/connectors/test_accelerator_connector.py"),
    Suite("tests_pytorch/test_cli.py"),
    Suite("tests_pytorch/trainer/connectors/test_signal_connector.py", swapped=False),
    Suite("tests_pytorch/plugins/test_checkpoint_io_plugin.py", swapped=False),
    Suite("tests_pytorch/callbacks/progress/test_tqdm_progress_bar.py", swapped=False),
    Suite("tests_pytorch/trainer/test_ddp_sigterm_handling.py", swapped=False),
)

_ENVIRONMENT = "tests_fabric/plugins/environments/test_lightning.py::"
_CLUSTER = "tests_pytorch/plugins/test_cluster_integration.py::test_ranks_available_automatic_strategy_selection"
_CONNECTOR = "tests_pytorch/trainer/connectors/test_accelerator_connector.py::"
_CLI = "tests_pytorch/test_cli.py::"
_BRINGS_ITS_OWN = (
    "under torchrun SMDDPStrategy brings a SageMakerEnvironment along, which reads the same variables; "
    "the test wants the class TorchElasticEnvironment"
)
EXPECTED: Dict[str, str] = {
    f"{_ENVIRONMENT}test_detect": "LightningEnvironment is the last resort and fits everywhere; ours says whether this "
    "is a SageMaker container",
    f"{_ENVIRONMENT}test_teardown": "ours leaves WORLD_SIZE alone: it is the launcher's, and the next call of the "
    "trainer needs it",
    f"{_CLUSTER}[trainer_kwargs0]": _BRINGS_ITS_OWN,
    f"{_CLUSTER}[trainer_kwargs2]": _BRINGS_ITS_OWN,
    f"{_CONNECTOR}test_strategy_choice_ddp_torchelastic": _BRINGS_ITS_OWN,
    f"{_CONNECTOR}test_torchelastic_priority_over_slurm": "the test sets TORCHELASTIC_RUN_ID without LOCAL_WORLD_SIZE "
    "and GROUP_RANK, which torchrun never does; ours refuses half a launcher",
    f"{_CLI}test_cli_configure_optimizers_warning": "the test looks for Lightning's class name in a message that names "
    "the class in use",
}
