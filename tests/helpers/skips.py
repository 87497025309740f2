"""Tests that a row runs and cannot pass, by name and with the reason; ``pytest -rs`` prints those that apply."""

from importlib import metadata
from typing import Tuple

__all__ = ["SKIPS", "Version", "installed_version"]

Version = Tuple[int, int]


def installed_version(distribution: str) -> Version:
    """Major and minor version of what is installed, which is not imported for this."""
    major, minor = metadata.version(distribution).split(".")[:2]
    return int(major), int(minor)


_LIGHTNING = "pytorch-lightning"
_NO_ARGS = "LightningCLI takes no `args=` before Lightning 1.8"
_NO_CLI = "Lightning 1.5 has its CLI in another module, without -c"
_NO_LINKS = "jsonargparse 4.21, which Lightning before 1.8 needs, writes no config with a link into a named class"
_NO_WEIGHTS_ONLY = "torch.load cannot restrict what a file may hold before torch 1.13"
_MESH = "Lightning before 2.6.4 annotates device_mesh as a tuple of one number"
_NO_AVERAGES = "WeightAveraging came with Lightning 2.6"
_NO_BACKENDS = "torch calls the entry points of backends, by which the variable works, from 2.5 on"
_NO_BF16 = "gloo of torch 2.1 and older sums no bf16"
_FSDP2 = "SMDDP reduces no gradients of FSDP2 before torch 2.8"


# A pattern of ``fnmatch`` for the ids of tests as pytest prints them; before which version of what they cannot pass,
# and what that lacks.
SKIPS: Tuple[Tuple[str, str, Version, str], ...] = (
    ("tests/distributed/test_communication.py::*_goes_on_with_its_choice*[[]bf16]", "torch", (2, 4), _NO_BF16),
    *(
        (f"tests/distributed/test_strategies.py::{test}*SMDDPModelParallelStrategy]", "torch", (2, 8), _FSDP2)
        for test in ("test_smddp_is_joined", "test_a_library_that_was_imported")
    ),
    ("tests/auto/test_auto.py::test_*-variable-*", "torch", (2, 5), _NO_BACKENDS),
    ("tests/cli/test_strategies.py::test_*device_mesh*", _LIGHTNING, (2, 6), _MESH),
    ("tests/cli/test_cli.py::test_arguments_as_a_*", _LIGHTNING, (1, 8), _NO_ARGS),
    ("tests/cli/test_links.py::test_a_*", _LIGHTNING, (1, 8), _NO_LINKS),
    ("tests/cli/test_precedence.py::test_the_order_on_the_line_decides*words2*", _LIGHTNING, (1, 8), _NO_CLI),
    ("tests/resume/test_setups.py::*weight_averaging]", _LIGHTNING, (2, 6), _NO_AVERAGES),
    ("tests/failure/test_report.py::test_what_lightnings_own_cli_refuses*", _LIGHTNING, (1, 8), _NO_CLI),
    *(
        (f"tests/{test}", "torch", (1, 13), _NO_WEIGHTS_ONLY)
        for test in (
            "callbacks/test_model_export.py::test_best_checkpoint_is_loaded_with_weights_only",
            "failure/test_reason.py::test_a_long_cause_keeps_its_end_and_the_innermost_frame",
        )
    ),
)
