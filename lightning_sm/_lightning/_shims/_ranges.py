"""Which versions need which shim."""

from dataclasses import dataclass
from typing import Tuple

from lightning_sm._lightning._namespaces import Namespace

__all__ = ["SHIMS", "Shim", "needs"]


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
        Shim("heed_written_num_nodes", (1, 6), (1, 9), f"{_CONNECTOR}#L791"),
        Shim("keep_cluster_environment", (1, 6), (1, 9), f"{_CONNECTOR}#L783"),
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
