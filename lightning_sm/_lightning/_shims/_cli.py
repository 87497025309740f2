"""``LightningCLI`` and its parser."""

import sys
from typing import Any, Dict, Sequence

from lightning_sm._lightning._namespaces import Namespace
from lightning_sm._lightning._shims._ranges import needs

__all__ = [
    "add_any_data_module",
    "cli_base_path",
    "configs_must_be_whole",
    "parse_words",
    "save_config_arguments",
]


def add_any_data_module(namespace: Namespace, parser: Any) -> None:
    """Let a config name any data module, which a CLI without a class of its own did not offer."""
    if not needs("add_any_data_module", namespace) or any(action.dest == "data" for action in parser._actions):
        return
    parser.add_subclass_arguments(namespace.module().LightningDataModule, "data", fail_untyped=False, required=False)


def cli_base_path(namespace: Namespace) -> str:
    """Where Lightning's CLI is."""
    return "utilities.cli:LightningCLI" if needs("cli_base_path", namespace) else "cli:LightningCLI"


def configs_must_be_whole(namespace: Namespace) -> bool:
    """Whether the parser refuses a config file whose class lacks an argument that a later one brings.

    So does jsonargparse 4.21, the newest that these versions work with.
    """
    return needs("configs_must_be_whole", namespace)


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
