"""Looks at what a run names before a CLI is made: the model's base decides on Lightning's namespace."""

from typing import Optional, Sequence

from lightning_sm._arguments import JobArguments
from lightning_sm._job import TrainingJob
from lightning_sm._routing._classes import import_class
from lightning_sm._settings import Settings
from lightning_sm.errors import HyperparameterError

__all__ = ["SUBCOMMANDS", "find_model_class", "named_settings"]

SUBCOMMANDS = ("fit", "validate", "test", "predict", "tune")


def named_settings(words: Sequence[str], job: TrainingJob) -> Settings:
    """Gather what the run sets; nothing where it is faulty, for which the parser has the better words.

    Args:
        words: The command line without the program's name.
        job: The job.
    """
    try:
        arguments = JobArguments.read(words, job, SUBCOMMANDS)
        return Settings.collect(arguments.configs, arguments.hyperparameters, arguments.typed, arguments.subcommand)
    except HyperparameterError:
        return Settings()


def find_model_class(settings: Settings) -> Optional[type]:
    """Import the class that the run names as its model, or return ``None`` where there is no such class."""
    name = settings.get("model.class_path") or settings.get("model")
    return import_class(name) if isinstance(name, str) and "." in name else None
