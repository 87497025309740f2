"""The watch: a thread in each rank that hears of the first failure of any rank, and sees to it that this one ends."""

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional

from lightning_sm._failure._hub import loss_of
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._wire import Message, Wire
from lightning_sm._log import log

__all__ = ["HubAddress", "Watch"]

_CONNECT_SECONDS = 2.0
_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class HubAddress:
    """Where the hub listens, and by what it knows a rank of its own job."""

    address: str
    port: int
    token: str
    host: Optional[str] = None


class Watch:
    """Stays connected to the hub as long as this process lives.

    When another rank fails, ``tell`` gets the reason at once. If this process is still training ``grace`` seconds
    later, stuck in a collective whose other side is gone, it is ended with exit code 1. It never ends for the loss of a
    rank that was not training, or that left by itself, nor because the hub did.

    Args:
        rank: This process's global rank.
        world_size: How many processes train together.
        host: This host's name.
        find: Waits until the hub is there, at most until the event that it is given is set, and returns where it is;
            ``None`` where there will be none.
        tell: What to do with the first failure of another rank, such as writing it into the failure file.
        take_back: What to do where it was none, because a rank that seemed lost is back.
        grace: Seconds for the main thread to end by itself.
        patience: Seconds until a hub whose connection ended counts as lost.
        end: Ends this process.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        host: Optional[str],
        find: Callable[[threading.Event], Optional[HubAddress]],
        tell: Callable[[Reason], None],
        take_back: Callable[[Reason], None],
        *,
        grace: float = 15.0,
        patience: float = 4.0,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.rank, self.world_size, self.host = rank, world_size, host
        self.first: Optional[Reason] = None
        self.is_training = True
        self._find, self._tell, self._take_back, self._end = find, tell, take_back, end
        self._grace, self._patience = grace, patience
        self._main_is_training = True
        self._heard_at = 0.0
        self._wire: Optional[Wire] = None
        self._stopped, self._heard, self._told_all = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Say good-bye and end the thread: this process ends, and not by a failure that nobody knows of."""
        self._stopped.set()
        wire = self._wire
        if wire is not None:
            wire.send("bye")
            wire.hang_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CONNECT_SECONDS)

    def set_training(self, is_training: bool) -> None:
        """Tell whether this process is training: outside, nobody waits for it in a collective of Lightning's."""
        if is_training != self.is_training:
            self.is_training = is_training
            if self._wire is not None:
                self._wire.send("state", is_training=is_training)

    def publish(self, reason: Reason, timeout: float = 3.0) -> None:
        """Tell all ranks why this one fails, and wait up to ``timeout`` seconds until each has heard it."""
        deadline = time.monotonic() + timeout
        # A rank may fail right after joining, before it has found the hub.
        while self._wire is None and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        wire = self._wire
        if self.first is None and wire is not None and wire.send("failed", reason=reason.as_message()):
            self._told_all.wait(max(0.0, deadline - time.monotonic()))

    def wait_for_first(self, timeout: float) -> Optional[Reason]:
        """Return the first failure of another rank, waiting up to ``timeout`` seconds to hear of one."""
        if self._thread.is_alive():
            self._heard.wait(timeout)
        return self.first

    def _run(self) -> None:
        try:
            hub = self._find(self._stopped)
            if hub is not None:
                self._stay(hub)
        except Exception as error:  # whatever it is, training goes on
            log.debug("Failures of other ranks are not watched: %r", error)

    def _stay(self, hub: HubAddress) -> None:
        while not self._stopped.is_set():
            wire = self._join(hub)
            if wire is None:
                # A hub that was never there has not been lost, and one that was through had nothing more to do.
                if self._wire is not None and self.is_training and self._main_is_training:
                    self._hear(loss_of(0, hub.host))
                break
            self._wire = wire
            is_over = self._listen(wire)
            wire.close()
            if is_over:
                break
        while self.first is not None and not self._stopped.wait(_TICK_SECONDS):
            self._end_if_stuck()

    def _join(self, hub: HubAddress) -> Optional[Wire]:
        """Connect; where only a connection was lost, the hub is there at once."""
        deadline = time.monotonic() + self._patience
        while not self._stopped.is_set():
            try:
                wire = Wire(socket.create_connection((hub.address, hub.port), _CONNECT_SECONDS))
            except ConnectionRefusedError:
                return None  # its host is there, and it is not
            except (OSError, UnicodeError):
                wire = None
            if wire is not None:
                wire.send("hello", token=hub.token, rank=self.rank, host=self.host, is_training=self.is_training)
                answer = wire.receive()
                if answer:
                    for message in answer:
                        self._note(message, wire)
                    return wire
                wire.close()
            if time.monotonic() >= deadline or self._stopped.wait(0.5):
                break
        return None

    def _listen(self, wire: Wire) -> bool:
        """Listen until there is nothing more to hear (true) or the connection is gone (false)."""
        while not self._stopped.is_set():
            messages = wire.receive()
            if messages is None:
                return self._stopped.is_set() or self.first is not None
            for message in messages:
                if message.get("kind") == "closed":
                    return True
                self._note(message, wire)
            self._end_if_stuck()
        return True

    def _note(self, message: Message, wire: Wire) -> None:
        kind = message.get("kind")
        if kind in ("welcome", "main_state"):
            self._main_is_training = bool(message.get("main_is_training"))
        elif kind == "told_all":
            self._told_all.set()
        elif kind == "failed":
            self._hear(Reason.from_message(message["reason"]))
            wire.send("heard")
        elif kind == "back" and self.first is not None and self.first.is_loss:
            mistaken, self.first = self.first, None
            self._heard.clear()
            self._take_back(mistaken)

    def _hear(self, reason: Reason) -> None:
        try:
            self._tell(reason)
        finally:
            self.first, self._heard_at = reason, time.monotonic()
            self._heard.set()

    def _end_if_stuck(self) -> None:
        """End this process where it does not end by itself."""
        if self.first is not None and self.is_training and time.monotonic() - self._heard_at > self._grace:
            log.error("This rank still waits for others, which are gone, and is ended now.")
            sys.stderr.flush()
            sys.stdout.flush()
            self._stopped.set()
            self._end(1)
