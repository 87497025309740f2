"""The hub: a thread in rank zero that tells every rank of the first failure."""

import secrets
import selectors
import socket
import threading
from dataclasses import dataclass
from typing import Any, Dict, Optional, Set

from lightning_sm._failure._reason import Reason
from lightning_sm._failure._wire import Message, Wire, listen
from lightning_sm._log import log

__all__ = ["Hub", "loss_of"]

_TICK_SECONDS = 1.0


@dataclass
class _Member:
    """A rank that is connected."""

    wire: Wire
    rank: Optional[int] = None
    host: Optional[str] = None
    # Whether it is training: one that goes away then without a word was killed.
    is_training: bool = True
    has_left: bool = False


def loss_of(rank: Optional[int], host: Optional[str]) -> Reason:
    """Return the reason when a rank is gone without a word."""
    place = "a rank" if rank is None else f"rank {rank}"
    where = "" if host is None else f" on {host}"
    cause = (
        f"{place}{where} was killed: it ended without an exception (SIGKILL, often out of memory, or a crash of native "
        "code, or its host went away)"
    )
    return Reason(cause[0].upper() + cause[1:], rank, host, is_loss=True)


class Hub:
    """Knows which ranks are there, hears of the first failure, and passes it on to all.

    A rank says who it is (``hello``), whether it is training (``state``), that it failed (``failed``) and that it
    leaves (``bye``). Its connection ends in the moment in which its process does, however it dies. A rank that was
    training and has not said that it leaves is lost. That is told at once, because a launcher ends the others within a
    tenth of a second, and is taken back (``back``) if the rank returns: then only the connection was lost.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self._members: Dict[Wire, _Member] = {}
        self._first: Optional[Reason] = None
        self._publisher: Optional[Wire] = None
        self._unaware: Set[Wire] = set()
        self._main_is_training = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-hub", daemon=True)

    def start(self) -> int:
        """Begin to listen, and return the port."""
        self._server = listen()
        self._waker, self._wakes = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (self._server, self._wakes):
            self._selector.register(end, selectors.EVENT_READ)
        self._thread.start()
        return int(self._server.getsockname()[1])

    def close(self) -> None:
        """Tell every rank that there is no hub any more, which is no failure, and end the thread."""
        if self._thread.is_alive():
            self._closing.set()
            self._waker.close()
            self._thread.join(2 * _TICK_SECONDS)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if key.fileobj is self._server:
                        self._accept()
                    elif key.data in self._members:
                        self._hear(self._members[key.data])
        except Exception:  # whatever it is, training goes on
            log.exception("Failures of other ranks are not watched any more.")
        for wire in list(self._members):
            wire.send("closed")
            wire.close()
        for end in (self._server, self._wakes, self._selector):
            end.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        wire = Wire(connection)
        self._members[wire] = _Member(wire)
        self._selector.register(connection, selectors.EVENT_READ, wire)

    def _hear(self, member: _Member) -> None:
        messages = member.wire.receive()
        if messages is None:
            self._drop(member)
            return
        for message in messages:
            if member.rank is None and message.get("token") != self.token:
                self._drop(member)
                return
            self._take(member, message)

    def _take(self, member: _Member, message: Message) -> None:
        kind = message.get("kind")
        if kind == "hello":
            member.rank, member.host = message["rank"], message.get("host")
            member.is_training = bool(message.get("is_training"))
            if self._first is not None and self._first.is_loss and self._first.rank == member.rank:
                self._first = None
                self._send_all("back")
            member.wire.send("welcome", main_is_training=self._main_is_training)
            if self._first is not None:
                member.wire.send("failed", reason=self._first.as_message())
        elif kind == "state":
            member.is_training = bool(message.get("is_training"))
            if member.rank == 0:
                self._main_is_training = member.is_training
                self._send_all("main_state", main_is_training=member.is_training)
        elif kind == "bye":
            member.has_left = True
        elif kind == "heard":
            self._now_aware(member.wire)
        elif kind == "failed":
            # It will go now, and why is known.
            member.has_left = True
            if self._first is None:
                self._publish(Reason.from_message(message["reason"]), member.wire)
            else:
                member.wire.send("told_all")

    def _publish(self, reason: Reason, publisher: Optional[Wire]) -> None:
        self._first, self._publisher = reason, publisher
        others = [wire for wire, member in self._members.items() if member.rank is not None and wire is not publisher]
        self._unaware = set(others)
        for wire in others:
            if not wire.send("failed", reason=reason.as_message()):
                self._unaware.discard(wire)
        self._now_aware(None)

    def _send_all(self, kind: str, **content: Any) -> None:
        for wire in self._members:
            wire.send(kind, **content)

    def _now_aware(self, wire: Optional[Wire]) -> None:
        if wire is not None:
            self._unaware.discard(wire)
        if not self._unaware and self._publisher is not None:
            self._publisher.send("told_all")
            self._publisher = None

    def _drop(self, member: _Member) -> None:
        self._selector.unregister(member.wire.socket)
        member.wire.close()
        del self._members[member.wire]
        self._now_aware(member.wire)
        is_back = any(other.rank == member.rank for other in self._members.values())
        is_lost = member.rank is not None and member.is_training and not member.has_left and not is_back
        if is_lost and self._first is None:
            self._publish(loss_of(member.rank, member.host), None)
