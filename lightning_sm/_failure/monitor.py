"""``FailureMonitor``: receives the first failure of any rank, and ends this process if it is blocked afterwards."""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Callable, List, Optional

from lightning_sm._failure.connection import (
    Address,
    Connection,
    Message,
    MessageKind,
    Phase,
    ProcessInfo,
    loss_reason,
    read_phase,
)
from lightning_sm._failure.guard import Guard
from lightning_sm._failure.rank_ranges import RendezvousState
from lightning_sm._failure.reason import TORCH_PACKAGES, FailureReason
from lightning_sm._logging import log

__all__ = ["FailureMonitor"]

_CONNECT_TIMEOUT = 2.0
_RECEIVE_TIMEOUT = 1.0
_POLL_INTERVAL = 0.1
# A program that exits sooner, such as with a usage error, needs neither a guard nor a connection.
_START_DELAY = 0.3
# How long a failure before the ranks have joined waits for hosts that start later.
_LATE_HOSTS_TIMEOUT = 30.0


class FailureMonitor:
    """A thread that stays connected to the failure server of the job as long as this process lives.

    When another rank fails, ``on_failure`` is called with the reason at once. If this process still runs
    ``exit_timeout`` seconds later, blocked in a collective with ranks that are gone, it exits with code 1. Neither the
    loss of a rank that was not training, nor the regular exit of a rank or of the server, ends it.

    Args:
        process: This process.
        world_size: The number of processes that train together, or of hosts as long as only that is known.
        address: Where the server listens.
        on_failure: Called with the first failure of another rank.
        on_retract: Called with that failure if the rank that seemed lost has reconnected.
        start_guard: Starts the guard process beside this one, with the server in it if this is the main process.
        exit_timeout: Seconds that the main thread has to end by itself.
        reconnect_timeout: Seconds until a server whose connection ended counts as lost, with the main process. If only
            the guard process has ended in which it ran, the main process starts another one sooner.
        has_joined: Whether this process is a member of the process group.
        exit_process: Ends this process.
    """

    def __init__(
        self,
        process: ProcessInfo,
        world_size: int,
        address: Address,
        on_failure: Callable[[FailureReason], None],
        on_retract: Callable[[FailureReason], None],
        *,
        start_guard: Callable[[], Optional[Guard]] = lambda: None,
        exit_timeout: float = 15.0,
        reconnect_timeout: float = 8.0,
        has_joined: Callable[[], bool] = lambda: True,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.process, self.world_size, self.address = process, world_size, address
        self.first_failure: Optional[FailureReason] = None
        self._is_active, self._is_joining, self._joined_at = True, False, 0.0
        self._is_leaving = False
        self._on_failure, self._on_retract, self._exit_process = on_failure, on_retract, exit_process
        self._start_guard, self._has_joined = start_guard, has_joined
        self._exit_timeout, self._reconnect_timeout = exit_timeout, reconnect_timeout
        self._guard: Optional[Guard] = None
        self._main_phase = Phase.STARTING
        self._failed_at = 0.0
        self._connection: Optional[Connection] = None
        self._started, self._stopped = threading.Event(), threading.Event()
        self._failure_received, self._all_acknowledged = threading.Event(), threading.Event()
        self._rendezvous_state: Optional[RendezvousState] = None
        self._state_received = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-monitor", daemon=True)

    @property
    def phase(self) -> Phase:
        """What this process is doing."""
        if not self._is_active:
            return Phase.IDLE
        return Phase.TRAINING if self._joined_at else Phase.JOINING if self._is_joining else Phase.STARTING

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the other ranks and end the thread: this process exits regularly, or has reported its failure."""
        self._stopped.set()
        self._started.set()
        if self._guard is not None:
            self._guard.set_state(Phase.IDLE, self.process.rank)
        connection = self._connection
        if connection is not None:
            connection.send(MessageKind.LEAVE)
            connection.shutdown()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * _CONNECT_TIMEOUT)
        if self._guard is not None:
            self._guard.stop()

    def set_training(self, is_training: bool, *, is_failing: bool = False) -> None:
        """Tell whether this process trains; if not, no collective of Lightning waits for it.

        Args:
            is_training: Whether it does.
            is_failing: Whether an exception is about to leave the trainer's call. A program that catches it may go on.
        """
        self._is_active, self._is_leaving = is_training, is_failing
        self._check_joined()
        self._send_state()

    def set_joining(self, rank: int, world_size: int) -> None:
        """Tell that this process is about to join the process group.

        Args:
            rank: Its global rank.
            world_size: The number of processes in the group.
        """
        self.process = replace(self.process, rank=rank)
        self.world_size, self._is_joining = world_size, True
        self._started.set()
        self._send_state()

    def publish(self, reason: FailureReason, timeout: float = 3.0) -> None:
        """Send this rank's failure to all ranks, and wait until each has acknowledged it.

        Args:
            reason: Why this rank fails.
            timeout: Seconds to wait; 30 as long as the ranks have not joined, because a host may start later.
        """
        self._started.set()
        self._check_joined()
        deadline = time.monotonic() + (timeout if self._joined_at else max(timeout, _LATE_HOSTS_TIMEOUT))
        while self._connection is None and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        connection = self._connection
        if self.first_failure is not None or connection is None:
            return
        if connection.send(MessageKind.FAILED, reason=reason.to_message()):
            while not self._all_acknowledged.wait(_POLL_INTERVAL) and self.first_failure is None:
                if time.monotonic() >= deadline:
                    break

    def ask_who_has_joined(self, local_size: int, timeout: float = 2.0) -> Optional[RendezvousState]:
        """Ask the server which ranks have joined the process group, and return ``None`` if it does not answer.

        Args:
            local_size: Processes of each host, for ranks that do not know theirs yet.
            timeout: Seconds to wait.
        """
        connection = self._connection
        self._state_received.clear()
        if connection is None or not connection.send(MessageKind.WHO, local_size=local_size):
            return None
        return self._rendezvous_state if self._state_received.wait(timeout) else None

    def wait_for_failure(self, timeout: float) -> Optional[FailureReason]:
        """Return the first failure of another rank, waiting up to ``timeout`` seconds for one."""
        if self._thread.is_alive():
            self._failure_received.wait(timeout)
        return self.first_failure

    def _run(self) -> None:
        self._started.wait(_START_DELAY)
        if self._stopped.is_set():
            return
        try:
            self._guard = self._start_guard()
            self._send_state()
            self._stay_connected()
        except Exception as error:  # training goes on without the monitor
            log.warning("Failure monitoring stopped, failures of other ranks will not be reported: %r", error)

    def _stay_connected(self) -> None:
        while not self._stopped.is_set():
            connection = self._connect()
            if connection is None:
                break
            self._connection = connection
            is_over = self._listen(connection)
            connection.close()
            if is_over:
                break
        while not self._stopped.wait(_RECEIVE_TIMEOUT) and self.first_failure is not None:
            self._exit_if_blocked()

    def _connect(self) -> Optional[Connection]:
        """Connect to the server; return ``None`` if it is lost or never answered."""
        since, was_connected = time.monotonic(), self._connection is not None
        while not self._stopped.is_set():
            self._check_joined()
            self._restart_guard()
            for port in self.address.ports:
                with suppress(OSError, UnicodeError):
                    connection = self._say_hello(port)
                    if connection is not None:
                        return connection
            waited = time.monotonic() - since
            if was_connected and self._joined_at:
                if waited > self._reconnect_timeout:
                    self._lose_main()
                    return None
            elif self._joined_at and time.monotonic() - self._joined_at > 2 * _LATE_HOSTS_TIMEOUT:
                log.warning(
                    "Failure monitoring is off: no failure server answers at %s, ports %s.",
                    self.address.host,
                    ", ".join(map(str, self.address.ports)),
                )
                return None
            elif was_connected and waited > _LATE_HOSTS_TIMEOUT:
                self._lose_main()
                return None
            self._stopped.wait(_POLL_INTERVAL)
        return None

    def _restart_guard(self) -> None:
        """Start another guard for one that has ended; if this is the main process, the other ranks wait for it."""
        if self._guard is not None and not self._guard.is_running:
            log.warning("The failure guard process beside this one has ended; starting another one.")
            self._guard.stop()
            self._guard = self._start_guard()
            self._send_state()

    def _lose_main(self) -> None:
        # A server whose main process was idle may have ended regularly.
        if self._is_active and self._main_phase != Phase.IDLE:
            self._receive_failure(loss_reason(ProcessInfo(0, 0, self.address.host, 0)))

    def _say_hello(self, port: int) -> Optional[Connection]:
        connection = Connection(socket.create_connection((self.address.host, port), _CONNECT_TIMEOUT))
        content = {**vars(self.process), "phase": self.phase, "token": self.address.token}
        messages: List[Message] = []
        if connection.send(MessageKind.HELLO, **content):
            messages = connection.receive() or []
        if not messages or messages[0].get("kind") != MessageKind.WELCOME:
            connection.close()
            return None
        for message in messages:
            self._handle(message, connection)
        return connection

    def _listen(self, connection: Connection) -> bool:
        """Receive until no more messages are expected (true) or the connection is lost (false)."""
        self._send_state()
        while not self._stopped.is_set():
            connection.socket.settimeout(_RECEIVE_TIMEOUT if self._joined_at else _POLL_INTERVAL)
            messages = connection.receive()
            if messages is None:
                return self._stopped.is_set() or self.first_failure is not None
            for message in messages:
                if message.get("kind") == MessageKind.CLOSED:
                    # Before this process has joined, the server may be that of a program that only read the job.
                    return bool(self._joined_at) or self.first_failure is not None
                self._handle(message, connection)
            self._check_joined()
            self._exit_if_blocked()
        return True

    def _check_joined(self) -> None:
        if not self._joined_at and self._has_joined():
            self._joined_at = time.monotonic()
            self._send_state()

    def _send_state(self) -> None:
        if self._guard is not None:
            self._guard.set_state(self.phase, self.process.rank)
        if self._connection is not None:
            self._connection.send(MessageKind.STATE, phase=self.phase, rank=self.process.rank)

    def _handle(self, message: Message, connection: Connection) -> None:
        kind = message.get("kind")
        if kind in (MessageKind.WELCOME, MessageKind.MAIN_PHASE):
            self._main_phase = read_phase(message, "main_phase")
        elif kind == MessageKind.RENDEZVOUS:
            self._rendezvous_state = RendezvousState.from_message(message)
            self._state_received.set()
        elif kind == MessageKind.ALL_ACKNOWLEDGED:
            self._all_acknowledged.set()
        elif kind == MessageKind.FAILED:
            reason = FailureReason.from_message(message.get("reason"))
            if reason is not None:
                self._receive_failure(reason)
                connection.send(MessageKind.ACKNOWLEDGE)
        elif kind == MessageKind.RETRACT and self.first_failure is not None:
            retracted, self.first_failure = self.first_failure, None
            self._failure_received.clear()
            self._on_retract(retracted)

    def _receive_failure(self, reason: FailureReason) -> None:
        try:
            with suppress(OSError):
                self._on_failure(reason)
        finally:
            self.first_failure, self._failed_at = reason, time.monotonic()
            self._failure_received.set()

    def _exit_if_blocked(self) -> None:
        if self.first_failure is None or not self._is_active or (self._is_leaving and not _is_in_torch()):
            return
        if time.monotonic() - self._failed_at > self._exit_timeout:
            log.error("Blocked after another rank failed; exiting with code 1.")
            sys.stderr.flush()
            sys.stdout.flush()
            self._stopped.set()
            self._exit_process(1)


def _is_in_torch() -> bool:
    """Whether the main thread is in a call of torch or Lightning, such as ``Trainer.fit`` or a collective."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in TORCH_PACKAGES:
            return True
        frame = frame.f_back
    return False
