"""Every error that lightning-sm raises on purpose, written for the person who reads one line of CloudWatch."""

from typing import Optional

__all__ = [
    "LightningSMError",
    "JobConfigError",
    "TopologyError",
    "HyperparameterError",
    "OptionError",
    "RoutingError",
    "OutputError",
    "CheckpointError",
    "ExportError",
    "SMDDPUnavailableError",
    "LightningImportError",
    "LightningAttributeError",
    "RehearsalError",
]


class LightningSMError(Exception):
    """Base class. The message says what is wrong, what the platform says, and after ``HINT:`` what to do, in one line.

    Args:
        problem: One sentence: what was set or found, and where.
        hint: One sentence that tells what to do about it.
    """

    def __init__(self, problem: str, *, hint: Optional[str] = None) -> None:
        # A quoted path or another error's text may bring line breaks along; the failure reason shows one line.
        super().__init__(" ".join((problem if hint is None else f"{problem} HINT: {hint}").splitlines()))
        self.problem = problem
        self.hint = hint


class JobConfigError(LightningSMError, ValueError):
    """A file or variable by which SageMaker describes the job is missing, broken or contradicts another."""


class TopologyError(LightningSMError, ValueError):
    """The launcher's ranks do not make a world, or the ``Trainer`` asks for another world than the launcher made."""


class HyperparameterError(LightningSMError, ValueError):
    """A hyperparameter or an argument of the command line cannot be used."""


class OptionError(HyperparameterError, TypeError):
    """A script hands over ``sagemaker`` options that there are not."""


class RoutingError(LightningSMError, ValueError):
    """It is not clear which setting a channel or directory should feed."""


class OutputError(LightningSMError, OSError):
    """A directory that the job must write into cannot be written."""


class CheckpointError(LightningSMError, RuntimeError):
    """A checkpoint cannot be saved, or the job cannot go on from the ones that are there."""


class ExportError(LightningSMError, RuntimeError):
    """The trained model could not be written to the model directory."""


class SMDDPUnavailableError(LightningSMError, RuntimeError):
    """The backend ``smddp`` was asked for by name, and AWS's library cannot be loaded here."""


class LightningImportError(LightningSMError, ImportError):
    """No usable Lightning is installed, or importing it failed for a known reason."""


class LightningAttributeError(LightningSMError, AttributeError):
    """An attribute of ``lightning_sm`` that needs Lightning was read, such as ``SMDDPStrategy``, and there is none."""


class RehearsalError(LightningSMError, RuntimeError):
    """The rehearsal cannot be started as requested, or its hosts could not be set up. Nothing is left running."""
