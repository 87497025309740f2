"""A small process beside each rank that writes the failure file when the rank is killed.

A process that is killed, or that aborts in native code, can write nothing, and on a host with one rank nobody else is
there. The toolkit then says ``ExitCode -9``. On the worker hosts of ``mpirun`` and of a rank that gloo's
``EnforceNotMet`` aborted it reports success: ``sagemaker_training/mpi.py``,
``sagemaker_pytorch_container/training.py``.

Beside global rank 0 it holds the failure server, too, whose connections and work then are none of the training's.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Dict, Optional, Set

from lightning_sm._failure._connection import Phase, Process, loss_of
from lightning_sm._failure._file import write_failure
from lightning_sm._failure._kills import with_kills
from lightning_sm._failure._rendezvous import Address
from lightning_sm._failure._server import FailureServer
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["Guard"]

_SECONDS = 2.0
# A data loader's worker would keep them open beyond the end of its parent.
_pipes: Set[int] = set()


class Guard:
    """Watches this process through a pipe, which ends with it.

    Args:
        failure_file: The job's failure file.
        host: This host's name.
        server: Where the guard is to run the failure server, if it is.
    """

    def __init__(self, failure_file: str, host: Optional[str], server: Optional[Address] = None) -> None:
        import lightning_sm

        ours = os.path.dirname(os.path.dirname(os.path.abspath(lightning_sm.__file__)))
        path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))
        its_end, self._pipe = os.pipe()
        # In a session of its own, because launchers end whole groups of processes.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lightning_sm._failure._guard", failure_file],
            stdin=its_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(its_end)
        _pipes.add(self._pipe)
        self._send(host=host, server=None if server is None else asdict(server))

    def tell(self, phase: str, rank: Optional[int]) -> None:
        """Tell how far this process is, and with which global rank: its end without a word may be a failure."""
        self._send(phase=phase, rank=rank)

    def dismiss(self) -> None:
        """End the guard: this process ends by itself."""
        self.tell(Phase.IDLE, None)
        if self._pipe in _pipes:
            _pipes.remove(self._pipe)
            os.close(self._pipe)
        # It goes at once, unless it has hardly begun.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)

    def _send(self, **content: Any) -> None:
        if self._pipe in _pipes:
            with suppress(OSError):
                os.write(self._pipe, json.dumps(content).encode() + b"\n")


def _close_in_child() -> None:
    while _pipes:
        with suppress(OSError):
            os.close(_pipes.pop())


os.register_at_fork(after_in_child=_close_in_child)


def main(failure_file: str) -> None:
    """Wait for the end of the process that started this one, and write why, if it was training."""
    known: Dict[str, Any] = {"host": None, "phase": Phase.STARTING, "rank": None}
    server: Optional[FailureServer] = None
    for line in sys.stdin:
        known.update(json.loads(line))
        if known.get("server") and server is None:
            server = FailureServer(Address(**{**known["server"], "ports": tuple(known["server"]["ports"])}))
            server.start()
    lost = Process(0, 0, known["host"], known["rank"]) if known["phase"] == Phase.TRAINING else None
    if lost is not None:
        job = TrainingJob(in_container=True, current_host=known["host"], failure_file=failure_file)
        write_failure(job, str(with_kills(loss_of(lost), known["host"])))
    if server is not None:
        server.close(lost)


if __name__ == "__main__":
    main(*sys.argv[1:])
