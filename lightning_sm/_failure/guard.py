"""A guard process beside each rank, which writes the failure file if the rank is killed.

A process that is killed, or that aborts in native code, cannot write anything, and on a host with one rank no other
process of the job runs. The toolkit then reports ``ExitCode -9``; on the worker hosts of ``mpirun``, and for a rank
that gloo's ``EnforceNotMet`` aborted, it reports success: ``sagemaker_training/mpi.py``,
``sagemaker_pytorch_container/training.py``.

The guard of global rank 0 also runs the failure server, so that its work does not slow the training down and the end
of rank 0 does not end it.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

from lightning_sm._failure.connection import Address, Phase, ProcessInfo, loss_reason, read_phase
from lightning_sm._failure.failure_file import with_oom_kills, write_failure
from lightning_sm._sagemaker.job import TrainingJob

if TYPE_CHECKING:
    from lightning_sm._failure.server import FailureServer

__all__ = ["Guard", "main"]

_EXIT_TIMEOUT = 2.0
# Imports this module without running the __init__ of its packages, which would import the rest of the package, and with
# neither site-packages (-S) nor the user's folders on sys.path, whose modules could hide those of the standard library.
_PROGRAM = """\
import sys
sys.path[:] = filter(None, sys.path)
for name in ("lightning_sm", "lightning_sm._failure"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = ["/".join([sys.argv[1], *name.split(".")])]
from lightning_sm._failure.guard import main
main(sys.argv[2])
"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The write ends of the pipes to guards. The child of a fork must not keep them open beyond the end of its parent.
_pipes: Set[int] = set()


class Guard:
    """Starts the guard process, which notices the end of this one by the end of the pipe between them.

    Args:
        failure_file: The job's failure file.
        host: This host's name.
        server: The address at which the guard runs the failure server, if it should.
    """

    def __init__(self, failure_file: str, host: Optional[str], server: Optional[Address] = None) -> None:
        read_end, self._pipe = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _PROGRAM, _ROOT, failure_file],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            # Launchers kill the whole process group of a rank.
            start_new_session=True,
        )
        os.close(read_end)
        _pipes.add(self._pipe)
        self._send(host=host, server=None if server is None else asdict(server))

    def set_state(self, phase: Phase, rank: Optional[int]) -> None:
        """Set this process's phase and global rank: from ``TRAINING`` on, its sudden exit is a failure."""
        self._send(phase=phase, rank=rank)

    @property
    def is_running(self) -> bool:
        """Whether the guard process has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the guard because this process exits by itself."""
        self.set_state(Phase.IDLE, None)
        if self._pipe in _pipes:
            _pipes.remove(self._pipe)
            os.close(self._pipe)
        # A guard that is still starting up may take longer, and ends by itself.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)

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
    """Run the guard process: wait until the rank that started it ends, and write the reason if it was training.

    Args:
        failure_file: The job's failure file.
    """
    state: Dict[str, Any] = {"host": None, "phase": Phase.STARTING, "rank": None}
    server: Optional[FailureServer] = None
    for line in sys.stdin:
        state.update(json.loads(line))
        if state.get("server") and server is None:
            server = _start_server(state["server"])
    is_lost = read_phase(state) == Phase.TRAINING
    lost = ProcessInfo(0, 0, state["host"], state["rank"]) if is_lost else None
    if lost is not None:
        job = TrainingJob(in_container=True, current_host=lost.host, failure_file=failure_file)
        write_failure(job, str(with_oom_kills(loss_reason(lost), lost.host)))
    if server is not None:
        server.close(lost)


def _start_server(address: Dict[str, Any]) -> "FailureServer":
    from lightning_sm._failure.server import FailureServer

    server = FailureServer(Address(**{**address, "ports": tuple(address["ports"])}))
    server.start()
    return server
