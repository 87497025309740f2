"""``FailureMonitor``: hears of the first failure of any rank, and sees to it that this one ends."""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Callable, List, Optional

from lightning_sm._failure._connection import Connection, Message, Phase, Process, loss_of, read_phase
from lightning_sm._failure._guard import Guard
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._rendezvous import Address
from lightning_sm._logging import log

__all__ = ["FailureMonitor"]

_CONNECT_SECONDS = 2.0
_TICK_SECONDS = 1.0
_POLL_SECONDS = 0.1
# A program that ends sooner, such as by a word that its parser refuses, needs neither a guard nor a connection.
_BEGIN_SECONDS = 0.3
# How long a failure before the ranks have joined waits for hosts that start later.
_OTHERS_SECONDS = 30.0


class FailureMonitor:
    """A thread that stays connected to the failure server of the job as long as this process lives.

    When another rank fails, ``tell`` gets the reason at once. If this process is still there ``grace`` seconds later,
    stuck in a collective whose other side is gone, it is ended with exit code 1. It never ends for the loss of a rank
    that was not training, or that left by itself, nor because the server did.

    Args:
        process: This process.
        world_size: How many processes train together, or hosts, as far as it is known.
        address: Where the server is.
        tell: What to do with the first failure of another rank, such as writing it into the failure file.
        take_back: What to do where it was none, because a rank that seemed lost is back.
        start_guard: Starts the guard beside this process, with the server in it where this is the main process.
        grace: Seconds for the main thread to end by itself.
        patience: Seconds until a server whose connection ended counts as lost.
        has_joined: Whether this process has joined the process group.
        end: Ends this process.
    """

    def __init__(
        self,
        process: Process,
        world_size: int,
        address: Address,
        tell: Callable[[Reason], None],
        take_back: Callable[[Reason], None],
        *,
        start_guard: Callable[[], Optional[Guard]] = lambda: None,
        grace: float = 15.0,
        patience: float = 4.0,
        has_joined: Callable[[], bool] = lambda: True,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.process, self.world_size, self.address = process, world_size, address
        self.first: Optional[Reason] = None
        self._is_active, self._is_joining, self._joined_at = True, False, 0.0
        self._tell, self._take_back, self._end = tell, take_back, end
        self._start_guard, self._has_joined = start_guard, has_joined
        self._grace, self._patience = grace, patience
        self._guard: Optional[Guard] = None
        self._main_phase = Phase.STARTING
        self._heard_at = 0.0
        self._connection: Optional[Connection] = None
        self._begun, self._stopped = threading.Event(), threading.Event()
        self._heard, self._told_all = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-monitor", daemon=True)

    @property
    def phase(self) -> str:
        """How far this process is."""
        if not self._is_active:
            return Phase.IDLE
        return Phase.TRAINING if self._joined_at else Phase.JOINING if self._is_joining else Phase.STARTING

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Say good-bye and end the thread: this process ends, and not by a failure that nobody knows of."""
        self._stopped.set()
        self._begun.set()
        if self._guard is not None:
            self._guard.tell(Phase.IDLE, self.process.rank)
        connection = self._connection
        if connection is not None:
            connection.send("bye")
            connection.hang_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * _CONNECT_SECONDS)
        if self._guard is not None:
            self._guard.dismiss()

    def set_training(self, is_training: bool) -> None:
        """Tell whether this process is training: outside, nobody waits for it in a collective of Lightning's."""
        self._is_active = is_training
        self._note_joined()
        self._tell_phase()

    def set_joining(self, rank: int, world_size: int) -> None:
        """Tell that this process is about to join the process group, as this rank of so many."""
        self.process = replace(self.process, rank=rank)
        self.world_size, self._is_joining = world_size, True
        self._begun.set()
        self._tell_phase()

    def publish(self, reason: Reason, timeout: float = 3.0) -> None:
        """Tell all ranks why this one fails, and wait up to ``timeout`` seconds until each has heard it.

        As long as they have not joined each other, a host may yet have to start, and gets up to 30 seconds.
        """
        self._begun.set()
        self._note_joined()
        deadline = time.monotonic() + (timeout if self._joined_at else max(timeout, _OTHERS_SECONDS))
        while self._connection is None and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        connection = self._connection
        if self.first is None and connection is not None and connection.send("failed", reason=reason.as_message()):
            while not self._told_all.wait(_POLL_SECONDS) and self.first is None and time.monotonic() < deadline:
                pass

    def wait_for_first(self, timeout: float) -> Optional[Reason]:
        """Return the first failure of another rank, waiting up to ``timeout`` seconds to hear of one."""
        if self._thread.is_alive():
            self._heard.wait(timeout)
        return self.first

    def _run(self) -> None:
        self._begun.wait(_BEGIN_SECONDS)
        if self._stopped.is_set():
            return
        try:
            self._guard = self._start_guard()
            self._tell_phase()
            self._stay()
        except Exception as error:  # whatever it is, training goes on
            log.warning("Failures of other ranks are not heard of any more: %r", error)

    def _stay(self) -> None:
        while not self._stopped.is_set():
            connection = self._connect()
            if connection is None:
                break
            self._connection = connection
            is_over = self._listen(connection)
            connection.close()
            if is_over:
                break
        while not self._stopped.wait(_TICK_SECONDS) and self.first is not None:
            self._end_if_stuck()

    def _connect(self) -> Optional[Connection]:
        """Connect to the server; ``None`` where there is none any more, or never was one."""
        since, was_there = time.monotonic(), self._connection is not None
        while not self._stopped.is_set():
            self._note_joined()
            refused = True
            for port in self.address.ports:
                try:
                    connection = self._join(port)
                except ConnectionRefusedError:
                    continue
                except (OSError, UnicodeError):
                    connection = None
                if connection is not None:
                    return connection
                refused = False
            waited = time.monotonic() - since
            if was_there and self._joined_at:
                # A host that refuses is there, and its server is not.
                if refused or waited > self._patience:
                    self._lose_main()
                    return None
            elif self._joined_at and time.monotonic() - self._joined_at > 2 * _OTHERS_SECONDS:
                log.warning(
                    "Failures of other ranks are not heard of: nobody answers at %s, ports %s.",
                    self.address.host,
                    ", ".join(map(str, self.address.ports)),
                )
                return None
            elif was_there and waited > _OTHERS_SECONDS:
                self._lose_main()
                return None
            self._stopped.wait(_POLL_SECONDS)
        return None

    def _lose_main(self) -> None:
        # A server that was through had nothing more to do.
        if self._is_active and self._main_phase != Phase.IDLE:
            self._hear(loss_of(Process(0, 0, self.address.host, 0)))

    def _join(self, port: int) -> Optional[Connection]:
        connection = Connection(socket.create_connection((self.address.host, port), _CONNECT_SECONDS))
        sent = {**vars(self.process), "phase": self.phase, "token": self.address.token}
        messages: List[Message] = []
        if connection.send("hello", **sent):
            messages = connection.receive() or []
        if not messages or messages[0].get("kind") != "welcome":
            connection.close()
            return None
        for message in messages:
            self._note(message, connection)
        return connection

    def _listen(self, connection: Connection) -> bool:
        """Listen until there is nothing more to hear (true) or the connection is gone (false)."""
        self._tell_phase()
        while not self._stopped.is_set():
            connection.socket.settimeout(_TICK_SECONDS if self._joined_at else _POLL_SECONDS)
            messages = connection.receive()
            if messages is None:
                return self._stopped.is_set() or self.first is not None
            for message in messages:
                if message.get("kind") == "closed":
                    # Before it has joined it may have met a program that only looked at the job, and go on looking.
                    return bool(self._joined_at) or self.first is not None
                self._note(message, connection)
            self._note_joined()
            self._end_if_stuck()
        return True

    def _note_joined(self) -> None:
        if not self._joined_at and self._has_joined():
            self._joined_at = time.monotonic()
            self._tell_phase()

    def _tell_phase(self) -> None:
        if self._guard is not None:
            self._guard.tell(self.phase, self.process.rank)
        if self._connection is not None:
            self._connection.send("state", phase=self.phase, rank=self.process.rank)

    def _note(self, message: Message, connection: Connection) -> None:
        kind = message.get("kind")
        if kind in ("welcome", "main"):
            self._main_phase = read_phase({"phase": message.get("main")})
        elif kind == "told_all":
            self._told_all.set()
        elif kind == "failed":
            reason = Reason.from_message(message.get("reason"))
            if reason is not None:
                self._hear(reason)
                connection.send("heard")
        elif kind == "back" and self.first is not None:
            mistaken, self.first = self.first, None
            self._heard.clear()
            self._take_back(mistaken)

    def _hear(self, reason: Reason) -> None:
        try:
            with suppress(OSError):
                self._tell(reason)
        finally:
            self.first, self._heard_at = reason, time.monotonic()
            self._heard.set()

    def _end_if_stuck(self) -> None:
        """End this process where it does not end by itself."""
        if self.first is not None and self._is_active and time.monotonic() - self._heard_at > self._grace:
            log.error("Blocked after another rank failed; exiting with code 1.")
            sys.stderr.flush()
            sys.stdout.flush()
            self._stopped.set()
            self._end(1)
