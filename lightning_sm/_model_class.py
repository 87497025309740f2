"""Looks up the user's model before a CLI is made, because its base decides on Lightning's namespace."""

import importlib
from typing import Optional, Sequence

from lightning_sm._arguments import JobArguments
from lightning_sm._job import TrainingJob
from lightning_sm._settings import Settings
from lightning_sm.errors import HyperparameterError

__all__ = ["SUBCOMMANDS", "find_model_class"]

SUBCOMMANDS = ("fit", "validate", "test", "predict", "tune")


def find_model_class(words: Sequence[str], job: TrainingJob) -> Optional[type]:
    """Import the class that the run names as its model, or return ``None``: errors are left to the parser, which
    words them better.

    Args:
        words: The command line without the program's name.
        job: The job.
    """
    try:
        arguments = JobArguments.read(words, job, SUBCOMMANDS)
        settings = Settings.collect(arguments.configs, arguments.hyperparameters, arguments.typed, arguments.subcommand)
    except HyperparameterError:
        return None
    name = settings.get("model.class_path") or settings.get("model")
    if not isinstance(name, str) or "." not in name:
        return None
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
    return found if isinstance(found, type) else None
