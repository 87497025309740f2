"""``Finding``, what a check of the doctor returns, and ``Machine``, what it looks at."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

from lightning_sm._failure import Redactor
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import LightningSMError

__all__ = ["Check", "Finding", "Machine", "count_findings", "examine", "name_of"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Args:
        check: What was examined, such as ``shared memory``.
        text: What was found, in one line.
        hint: What to do about it.
        is_error: Whether the job fails, waits forever or loses results; otherwise it runs, but slower than it could or
            other than it looks.
    """

    check: str
    text: str
    hint: str
    is_error: bool = False

    @property
    def status(self) -> str:
        """``error`` or ``warning``."""
        return "error" if self.is_error else "warning"

    def __str__(self) -> str:
        return f"{self.check}: {self.text} HINT: {self.hint}"


@dataclass(frozen=True)
class Machine:
    """What the checks look at. Read it with :meth:`read`; tests build it.

    Args:
        environ: The environment variables.
        job: The training job; empty outside a container, or where its files cannot be read.
        topology: The processes; ``None`` where they cannot be determined.
        root: The directory below which absolute paths of the system (``/dev/shm``, ``/proc``) are read.
        problem: Why job or topology could not be read.
    """

    environ: Mapping[str, str]
    job: TrainingJob
    topology: Optional[Topology] = None
    root: Path = Path("/")
    problem: Optional[LightningSMError] = None

    @classmethod
    def read(cls, environ: Optional[Mapping[str, str]] = None, *, root: Path = Path("/")) -> "Machine":
        """Read job and topology of this machine.

        Args:
            environ: The environment variables instead of ``os.environ``.
            root: The directory below which absolute paths of the system are read.
        """
        environ = os.environ if environ is None else environ
        job = TrainingJob()
        try:
            job = TrainingJob.resolve(environ)
            return cls(environ, job, Topology.resolve(environ, job), root)
        except LightningSMError as error:
            return cls(environ, job, None, root, error)

    def path(self, path: str) -> Path:
        """Return a path of the system, such as ``/dev/shm``, below ``root``."""
        return self.root / path.lstrip("/")


#: A function that examines one thing and yields what is wrong with it. Its docstring says what it examines, and behind
#: ``Saves:`` what it costs to find out later; the docs show both.
Check = Callable[[Machine], Iterable[Finding]]


def name_of(check: Check) -> str:
    """What a check examines, by the name of its function: ``shared memory`` for ``shared_memory``."""
    return check.__name__.replace("_", " ")


def examine(checks: Sequence[Check], machine: Machine) -> Tuple[Finding, ...]:
    """Run the checks, and return what they found, errors last, with secrets masked.

    Args:
        checks: The checks.
        machine: What they look at.
    """
    redact = Redactor(machine.job, machine.environ)
    found = [
        Finding(each.check, _line(redact(each.text)), _line(redact(each.hint)), each.is_error)
        for check in checks
        for each in _run(check, machine)
    ]
    if machine.problem is not None:
        hint = machine.problem.hint or "SageMaker writes the file and sets the variable; look for what changes them."
        found.append(Finding("job", _line(redact(machine.problem.problem)), hint, is_error=True))
    return tuple(sorted(found, key=lambda each: each.is_error))


def _run(check: Check, machine: Machine) -> Iterator[Finding]:
    try:
        yield from check(machine)
    except Exception as error:  # a check that fails says so and hides no other
        yield Finding(
            name_of(check),
            f"could not be examined: {type(error).__name__}: {error}",
            "Nothing, or look at what it names.",
        )


def _line(text: str) -> str:
    return " ".join(text.split())


def count_findings(findings: Sequence[Finding]) -> str:
    """The numbers of warnings and errors, such as ``1 warning, no errors``."""
    errors = sum(each.is_error for each in findings)
    numbers = ((len(findings) - errors, "warning"), (errors, "error"))
    return ", ".join(f"{number or 'no'} {noun}{'' if number == 1 else 's'}" for number, noun in numbers)
