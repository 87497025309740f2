"""``FailureMonitor``: starts the guard of this rank, and ends this rank if another one has failed and it is blocked."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Callable, Optional

from lightning_sm._failure.messages import GuardSettings, Kind, Message, Phase, RendezvousState, encode
from lightning_sm._failure.reason import TORCH_PACKAGES, package_of
from lightning_sm._logging import log

__all__ = ["FailureMonitor"]

_IO_TIMEOUT = 1.0
_POLL_INTERVAL = 0.1
_MAX_GUARDS = 3
_GUARD_EXIT_TIMEOUT = 2.0
# How long a failure is sent to the other ranks: to those that have joined, and to hosts that start later.
_PUBLISH_TIMEOUT = 3.0
_LATE_HOSTS_TIMEOUT = 30.0
# Imports the module without running the __init__ of its packages, which would import the rest of the package.
_PROGRAM = """\
import sys
for name in ("lightning_sm", "lightning_sm._failure"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = ["/".join([sys.argv[1], *name.split(".")])]
from lightning_sm._failure.guard import main
main()
"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class _Guard:
    """The guard process and the connection to it, by whose end it notices that of this process."""

    def __init__(self, settings: GuardSettings) -> None:
        self.connection, other_end = socket.socketpair()
        self.connection.settimeout(_IO_TIMEOUT)
        with other_end:
            self._process = subprocess.Popen(
                # Neither site-packages nor folders and variables of the user, whose modules could hide the library's.
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT],
                stdin=other_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Launchers kill the whole process group of a rank.
                start_new_session=True,
            )
        # The child of a fork, such as a data loader's worker, must not keep it open beyond the end of its parent.
        os.register_at_fork(after_in_child=self.connection.close)
        self.connection.sendall(encode(Kind.SETTINGS, **asdict(settings)))

    def end(self) -> None:
        """Let the guard end, and wait for that; also end every ``recv`` of the connection."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        # One that still sends a failure takes longer, and ends by itself.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GUARD_EXIT_TIMEOUT)


class FailureMonitor:
    """A thread that is connected to this rank's guard as long as this process lives.

    When another rank fails, the guard writes the reason to the failure file and tells this thread. If this process
    still runs ``exit_timeout`` seconds later, blocked in a collective with ranks that are gone, it exits with code 1.

    Args:
        settings: What the guard is told.
        exit_timeout: Seconds that the main thread has to end by itself.
        has_joined: Whether this process is a member of the process group.
        exit_process: Ends this process.
    """

    def __init__(
        self,
        settings: GuardSettings,
        *,
        exit_timeout: float = 15.0,
        has_joined: Callable[[], bool] = lambda: True,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.settings = settings
        self.first_failure: Optional[str] = None
        self._exit_timeout, self._has_joined, self._exit_process = exit_timeout, has_joined, exit_process
        self._is_active, self._is_joining, self._is_leaving, self._is_in_group = True, False, False, False
        self._failed_at = 0.0
        # The failure of this rank.
        self._reason: Optional[str] = None
        self._lock = threading.RLock()
        self._guard: Optional[_Guard] = None
        self._rendezvous_state: Optional[RendezvousState] = None
        self._stopped = threading.Event()
        # Of the first failure: this rank has another one's, or all hosts have this one's; or nobody can tell any more.
        self._is_known, self._state_received = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-monitor", daemon=True)

    @property
    def phase(self) -> Phase:
        """What this process is doing."""
        if not self._is_active:
            return Phase.IDLE
        return Phase.TRAINING if self._is_in_group else Phase.JOINING if self._is_joining else Phase.STARTING

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the other ranks and end the thread: this process exits by itself, or has reported its failure."""
        self._stopped.set()
        self._leave()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * _IO_TIMEOUT)

    def _leave(self) -> None:
        self._send(Kind.LEAVE)
        if self._guard is not None:
            self._guard.end()

    def set_training(self, is_training: bool, *, is_failing: bool = False) -> None:
        """Tell whether this process trains; if not, no collective of Lightning waits for it.

        Args:
            is_training: Whether it does.
            is_failing: Whether an exception is about to leave the trainer's call. A program that catches it may go on.
        """
        self._is_active, self._is_leaving = is_training, is_failing
        self._check_joined()
        self._send_state()

    def set_joining(self, rank: int) -> None:
        """Tell that this process is about to join the process group.

        Args:
            rank: Its global rank.
        """
        self.settings = replace(self.settings, process=replace(self.settings.process, rank=rank))
        self._is_joining = True
        self._send_state()

    def publish(self, reason: str) -> None:
        """Send this rank's failure to all ranks, and wait until each host has acknowledged it, for some seconds.

        As long as the ranks have not joined, it waits for 30 seconds, because a host may start later.

        Args:
            reason: Why this rank fails.
        """
        self._reason = reason
        self._check_joined()
        self._send_state()
        self._is_known.wait(_PUBLISH_TIMEOUT if self._is_in_group else _LATE_HOSTS_TIMEOUT)

    def ask_who_has_joined(self, local_size: int, timeout: float = 2.0) -> Optional[RendezvousState]:
        """Ask the server which ranks have joined the process group, and return ``None`` if it does not answer.

        Args:
            local_size: Processes of each host, for ranks that do not know theirs yet.
            timeout: Seconds to wait.
        """
        self._state_received.clear()
        self._send(Kind.WHO, local_size=local_size)
        return self._rendezvous_state if self._state_received.wait(timeout) else None

    def wait_for_failure(self, timeout: float) -> Optional[str]:
        """Return the first failure of another rank, waiting up to ``timeout`` seconds for one."""
        self._is_known.wait(timeout)
        return self.first_failure

    def _run(self) -> None:
        try:
            self._follow_guards()
        finally:
            self._is_known.set()

    def _follow_guards(self) -> None:
        for _ in range(_MAX_GUARDS):
            try:
                self._guard = _Guard(self.settings)
            except OSError as error:
                log.warning("The failure guard process could not be started: %s", error)
                break
            if self._stopped.is_set():
                # `stop` has seen no guard: this one was being started.
                self._leave()
                return
            self._send_state()
            self._listen(self._guard.connection)
            if self._stopped.is_set():
                return
            log.warning("The failure guard process beside this one has ended.")
            self._guard.end()
        log.warning("Failures are not shared with the other ranks from now on.")

    def _listen(self, connection: socket.socket) -> None:
        """Receive from the guard until it ends or this is stopped."""
        received = b""
        while not self._stopped.is_set():
            connection.settimeout(_IO_TIMEOUT if self._is_in_group else _POLL_INTERVAL)
            try:
                content = connection.recv(1 << 16)
                if not content:
                    return
            except socket.timeout:
                content = b""
            except OSError:
                return
            *lines, received = (received + content).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
            self._check_joined()
            self._exit_if_blocked()

    def _check_joined(self) -> None:
        if not self._is_in_group and self._has_joined():
            self._is_in_group = True
            self._send_state()

    def _send_state(self) -> None:
        # The last one sent is the state, whichever thread has changed it.
        with self._lock:
            self._send(Kind.STATE, phase=self.phase, rank=self.settings.process.rank, reason=self._reason)

    def _send(self, kind: Kind, **content: Any) -> None:
        with suppress(OSError), self._lock:
            if self._guard is not None:
                self._guard.connection.sendall(encode(kind, **content))

    def _handle(self, message: Message) -> None:
        kind = message["kind"]
        if kind == Kind.RENDEZVOUS:
            self._rendezvous_state = RendezvousState(message["joined"], message["starting"], message["hosts"])
            self._state_received.set()
        elif kind == Kind.KNOWN:
            self._is_known.set()
        elif kind == Kind.FAILED:
            self.first_failure, self._failed_at = message["reason"], time.monotonic()
            self._is_known.set()
            log.error("Another rank failed: %s", self.first_failure)

    def _exit_if_blocked(self) -> None:
        if self.first_failure is None or not self._is_active or (self._is_leaving and not _is_in_torch()):
            return
        if time.monotonic() - self._failed_at > self._exit_timeout:
            log.error("Blocked after another rank failed; exiting with code 1.")
            self._stopped.set()
            self._exit_process(1)


def _is_in_torch() -> bool:
    """Whether the main thread is in a call of torch or Lightning, such as ``Trainer.fit`` or a collective."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return any(package_of(each) in TORCH_PACKAGES for each, _ in traceback.walk_stack(frame))
