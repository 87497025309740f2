"""``Finding``, what a check of the doctor returns, and ``Machine``, what it looks at."""

import os
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import LightningSMError

__all__ = ["Check", "Finding", "Machine", "Status", "run_checks"]

# The sockets and subprocesses of single checks have shorter limits of their own.
_TIMEOUT = 20.0
_RESOURCES = "resourceconfig.json"


class Status(str, Enum):
    """How a finding is judged. Tables and JSON show the values.

    Example::

        >>> print(Status.WARNING)
        warning
    """

    #: Nothing to do.
    OK = "ok"
    #: The job runs, but slower than it could or not as expected.
    WARNING = "warning"
    #: The job fails, waits forever, or loses results.
    ERROR = "error"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        check: What was examined, such as ``shared memory``.
        status: Whether something is wrong.
        text: What was found, in one line.
        hint: What to do about it.
    """

    check: str
    status: Status
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Machine:
    """What the checks look at. Read it with :meth:`read`; tests build it.

    Args:
        environ: The environment variables.
        job: The training job; empty outside a container, or where its files cannot be read.
        topology: The processes; ``None`` where they cannot be determined.
        root: The directory below which absolute paths of the system (``/dev/shm``, ``/proc``) are read.
        is_here: Whether this is the machine that runs the checks. Otherwise it is another machine, of which only
            SageMaker's files are here.
        problems: Why job or topology could not be read.
    """

    environ: Mapping[str, str]
    job: TrainingJob
    topology: Optional[Topology] = None
    root: Path = Path("/")
    is_here: bool = True
    problems: Tuple[LightningSMError, ...] = ()

    @classmethod
    def read(
        cls,
        environ: Optional[Mapping[str, str]] = None,
        *,
        root: Path = Path("/"),
        config_dir: Optional[str] = None,
        job: Optional[TrainingJob] = None,
        topology: Optional[Topology] = None,
    ) -> "Machine":
        """Read job and topology.

        Args:
            environ: The environment variables instead of ``os.environ``.
            root: The directory below which absolute paths of the system are read.
            config_dir: A saved copy of ``/opt/ml/input/config`` (or of ``/opt/ml``) of another machine.
            job: The job, if it has been read already.
            topology: The topology, if it has been read already.
        """
        environ = os.environ if environ is None else environ
        if config_dir is not None:
            environ = {"SM_INPUT_CONFIG_DIR": _find_config(config_dir)}
        problems: List[LightningSMError] = []
        if job is None:
            job = TrainingJob()
            try:
                job = TrainingJob.resolve(environ)
            except LightningSMError as error:
                problems.append(error)
        if topology is None and not problems:
            try:
                topology = Topology.resolve(environ, job)
            except LightningSMError as error:
                problems.append(error)
        return cls(environ, job, topology, root, config_dir is None, tuple(problems))

    def path(self, path: str) -> Path:
        """Return a path of the system, such as ``/dev/shm``, below ``root``."""
        return self.root / path.lstrip("/")


#: A function that examines one thing and yields what it found.
Check = Callable[[Machine], Iterable[Finding]]


def _find_config(directory: str) -> str:
    for below in ("", "input/config", "ml/input/config", "opt/ml/input/config"):
        folder = os.path.join(directory, below) if below else directory
        if os.path.isfile(os.path.join(folder, _RESOURCES)):
            return folder
    return directory


@dataclass
class _Run:
    """A check in a thread of its own."""

    check: Check
    findings: Optional[Tuple[Finding, ...]] = None
    thread: threading.Thread = field(init=False)

    def start(self, machine: Machine) -> None:
        self.thread = threading.Thread(target=self._examine, args=(machine,), name=self.name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the host's limit of threads or memory: one after the other, then
            self._examine(machine)

    @property
    def name(self) -> str:
        """What the check examines, by its function: ``shared memory`` for ``shared_memory``."""
        return getattr(self.check, "__name__", "check").strip("_").replace("_", " ")

    def _examine(self, machine: Machine) -> None:
        try:
            self.findings = tuple(self.check(machine))
        except Exception as error:  # a check that fails says so and hides no other
            self.findings = (self._not_examined(f"{type(error).__name__}: {error}"),)

    def _not_examined(self, why: str) -> Finding:
        return Finding(self.name, Status.WARNING, f"could not be examined: {why}")

    def result(self, timeout: float) -> Tuple[Finding, ...]:
        if self.findings is None:
            self.thread.join(max(0.0, timeout))
        found = self.findings
        return (self._not_examined(f"no answer within {_TIMEOUT:.0f} s"),) if found is None else found


def run_checks(
    sections: Mapping[str, Iterable[Check]], machine: Machine, timeout: float = _TIMEOUT
) -> Dict[str, Tuple[Finding, ...]]:
    """Run all checks at the same time, and return what they found by section.

    Args:
        sections: The checks by section.
        machine: What they look at.
        timeout: Seconds after which a check that has not returned counts as one that could not be examined.
    """
    runs = {name: [_Run(check) for check in checks] for name, checks in sections.items()}
    deadline = time.monotonic() + timeout
    for section in runs.values():
        for run in section:
            run.start(machine)
    found: Dict[str, Tuple[Finding, ...]] = {}
    for name, section in runs.items():
        found[name] = tuple(finding for run in section for finding in run.result(deadline - time.monotonic()))
    return found
