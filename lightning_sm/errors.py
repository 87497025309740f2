"""The errors that lightning_sm raises. Each message is one line, because logs and failure reasons show one line.

It ends with the address of the section of ``docs/troubleshooting.md`` that explains the class.
"""

import re
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
    "LoggerError",
    "MetricDefinitionError",
    "SMDDPUnavailableError",
    "StrategyUnavailableError",
    "DoctorError",
    "LightningImportError",
    "RehearsalError",
    "LaunchError",
]

_PAGE = "https://github.com/lightning-sm/lightning-sm/blob/main/docs/troubleshooting.md"
_ADDRESS = re.compile(r" HINT: See {0}#\w+| ?\({0}#\w+\)".format(re.escape(_PAGE)))


class LightningSMError(Exception):
    """Base class of all errors of this package: the problem and, after ``HINT:``, what to do, in one line.

    The line ends with :attr:`link`.

    Args:
        problem: One sentence: what was set or found, and where.
        hint: One sentence: what to do about it.

    Example::

        >>> error = TopologyError("devices=2 in the Trainer, but the job has 8.", hint="Leave devices out.")
        >>> print(error)  # doctest: +ELLIPSIS
        devices=2 in the Trainer, but the job has 8. HINT: Leave devices out. (https://...troubleshooting.md#topologyerror)
    """

    def __init__(self, problem: str, *, hint: Optional[str] = None) -> None:
        # The text of another error that is quoted brings its own address.
        self.problem = _ADDRESS.sub("", problem)
        super().__init__(self.problem)
        self.hint = hint

    @property
    def link(self) -> str:
        """The address of the section of the page Troubleshooting that explains this class of errors."""
        cls = next(each for each in type(self).__mro__ if each.__module__ == __name__)
        return f"{_PAGE}#{cls.__name__.lower()}"

    def __str__(self) -> str:
        advice = f"See {self.link}" if self.hint is None else f"{self.hint} ({self.link})"
        # A quoted path or the text of another error may contain line breaks.
        return " ".join(f"{self.problem} HINT: {advice}".splitlines())


class JobConfigError(LightningSMError, ValueError):
    """A file or variable by which SageMaker describes the job is missing, malformed or contradicts another."""


class TopologyError(LightningSMError, ValueError):
    """The launcher's ranks and sizes are inconsistent, or the ``Trainer`` requests another world."""


class HyperparameterError(LightningSMError, ValueError):
    """A hyperparameter or a command line argument cannot be used."""


class OptionError(HyperparameterError, TypeError):
    """A script passes ``sagemaker`` options that do not exist, or one that should be a duration is none."""


class RoutingError(LightningSMError, ValueError):
    """It is ambiguous which setting a channel or directory feeds, or a channel has no files to read."""


class OutputError(LightningSMError, OSError):
    """A directory that the job writes to is not writable."""


class CheckpointError(LightningSMError, RuntimeError):
    """A checkpoint cannot be saved, or the job cannot resume from the existing ones."""


class ExportError(LightningSMError, RuntimeError):
    """The trained model cannot be written to the model directory."""


class LoggerError(LightningSMError, RuntimeError):
    """A logger cannot begin its run: its server cannot be reached or refuses access, or a package is missing."""


class MetricDefinitionError(LightningSMError, ValueError):
    """SageMaker does not accept the metric definitions that were asked for, or there is no metric to define."""


class SMDDPUnavailableError(LightningSMError, RuntimeError):
    """The backend ``smddp`` was requested by name, and AWS's library cannot be imported."""


class StrategyUnavailableError(LightningSMError, RuntimeError):
    """This Lightning, torch or image lacks what a strategy needs, or a build that was killed blocks it."""


class DoctorError(LightningSMError, RuntimeError):
    """``sagemaker.doctor`` found something on a host with which the job fails, waits forever, or loses results."""


class LightningImportError(LightningSMError, ImportError):
    """No supported Lightning is installed, or importing it failed for a known reason."""


class RehearsalError(LightningSMError, RuntimeError):
    """The rehearsal cannot be started as requested, or its hosts could not be set up. Nothing is left running."""


class LaunchError(LightningSMError, RuntimeError):
    """A job cannot be sent as requested, or a call of AWS's API failed."""
