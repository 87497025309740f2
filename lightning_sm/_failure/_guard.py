"""The guard: a small process beside each rank that writes the failure file when the rank is killed.

A process that is killed, or that aborts in native code, can write nothing, and on a host with one rank nobody else is
there. The toolkit then says ``ExitCode -9``. On the worker hosts of ``mpirun`` and of a rank that gloo's
``EnforceNotMet`` aborted it reports success: ``sagemaker_training/mpi.py``,
``sagemaker_pytorch_container/training.py``.
"""

import os
import subprocess
import sys
from contextlib import suppress
from typing import Set

from lightning_sm._failure._file import write_failure
from lightning_sm._failure._hub import loss_of
from lightning_sm._failure._kills import with_kills
from lightning_sm._job import TrainingJob

__all__ = ["Guard"]

_SECONDS = 2.0
# A data loader's worker would keep them open beyond the end of its parent.
_pipes: Set[int] = set()

_TRAINING, _NOT_TRAINING = "training", "not training"


class Guard:
    """Watches this process through a pipe, which ends with it.

    Args:
        failure_file: The job's failure file.
        rank: This process's global rank.
        host: This host's name.
    """

    def __init__(self, failure_file: str, rank: int, host: str) -> None:
        import lightning_sm

        ours = os.path.dirname(os.path.dirname(os.path.abspath(lightning_sm.__file__)))
        path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))
        its_end, self._pipe = os.pipe()
        # In a session of its own, because launchers end whole groups of processes.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lightning_sm._failure._guard", failure_file, str(rank), host],
            stdin=its_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(its_end)
        _pipes.add(self._pipe)
        self.set_training(True)

    def set_training(self, is_training: bool) -> None:
        """Tell whether the end of this process without a word is a failure."""
        with suppress(OSError):
            os.write(self._pipe, f"{_TRAINING if is_training else _NOT_TRAINING}\n".encode())

    def dismiss(self) -> None:
        """End the guard: this process ends by itself."""
        self.set_training(False)
        if self._pipe in _pipes:
            _pipes.remove(self._pipe)
            os.close(self._pipe)
        # It goes at once, unless it has hardly begun.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)


def _close_in_child() -> None:
    while _pipes:
        with suppress(OSError):
            os.close(_pipes.pop())


os.register_at_fork(after_in_child=_close_in_child)


def main(failure_file: str, rank: str, host: str) -> None:
    """Wait for the end of the process that started this one, and write why, if it was training."""
    last = _NOT_TRAINING
    for line in sys.stdin:
        last = line.strip()
    if last == _TRAINING:
        job = TrainingJob(in_container=True, current_host=host, failure_file=failure_file)
        write_failure(job, str(with_kills(loss_of(int(rank), host), host)))


if __name__ == "__main__":
    main(*sys.argv[1:])
