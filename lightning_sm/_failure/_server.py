"""``FailureServer``: tells every rank of the first failure of any."""

import hmac
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from lightning_sm._failure._connection import (
    Connection,
    Message,
    Phase,
    Process,
    early_exit_of,
    loss_of,
    read_phase,
)
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._rendezvous import Address, listen

__all__ = ["FailureServer"]

_TICK_SECONDS = 0.5
# Who has not said within this time who it is, is none of us; nor are so many at once.
_STRANGER_SECONDS = 5.0
_MOST_STRANGERS = 64
# How long a server that is closed still tells of a failure.
_LAST_SECONDS = 8.0
_MAIN = (0, 0)


@dataclass
class _Member:
    """A process that is connected and has said who it is."""

    connection: Connection
    process: Process
    phase: str
    has_left: bool = False


class FailureServer:
    """Knows which processes of a job are there, hears of the first failure, and passes it on to all.

    A process says who it is (``hello``), how far it is (``state``), that it failed (``failed``) and that it leaves
    (``bye``). Until it has said who it is, it hears nothing. Its connection
    ends in the moment in which it does, however it dies. One that was training and has not said that it leaves is lost.
    That is told at once, because a launcher ends the others within a tenth of a second, and is taken back (``back``) if
    it returns: then only the connection was lost. One that is gone before it joined the others is told of a little
    later, and only if another waits for it: SIGTERM, which stops a job, ends all of them then.

    It runs in the guard beside global rank 0, so that neither its load nor that rank's end touches the other.

    Args:
        address: Where to listen.
        departed_seconds: How long to wait for others to end before one that never joined counts as lost.
    """

    def __init__(self, address: Address, *, departed_seconds: float = 5.0) -> None:
        self.address = address
        self._departed_seconds = departed_seconds
        self._strangers: Dict[Connection, float] = {}
        self._members: Dict[Connection, _Member] = {}
        self._departed: Dict[Tuple[int, int], Tuple[float, Reason]] = {}
        self._first: Optional[Reason] = None
        # Whose failure it is: its connection while it waits, and its place.
        self._publisher: Optional[Connection] = None
        self._failed_place: Optional[Tuple[int, int]] = None
        self._unaware: Set[Connection] = set()
        self._aware_nodes: Set[int] = set()
        self._main_phase = Phase.STARTING
        self._closed_at: Optional[float] = None
        self._lost_main: Optional[Process] = None
        self._listener: Optional[socket.socket] = None
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-server", daemon=True)

    def start(self) -> None:
        """Begin to listen, as soon as the name of this host resolves."""
        self._thread.start()

    def close(self, lost: Optional[Process] = None) -> None:
        """Tell of a failure whom it was not told yet, then all that there is no server any more, which is none.

        Args:
            lost: The process beside which this server runs, where it was killed while it trained.
        """
        self._lost_main = lost
        self._closed_at = time.monotonic()
        self._thread.join(_LAST_SECONDS + 2 * _TICK_SECONDS)

    def _run(self) -> None:
        while self._listener is None:
            self._listener = listen(self.address)
            if self._listener is None:
                if self._closed_at is not None:
                    return
                time.sleep(_TICK_SECONDS)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._is_through():
            for key, _ in self._selector.select(_TICK_SECONDS):
                if key.data is None:
                    self._accept(self._listener)
                    continue
                try:
                    self._hear(key.data)
                except Exception:  # what one connection brings about must not end the others'
                    self._forget(key.data)
            self._drop_strangers()
            self._tell_departed()
        for connection in [*self._strangers, *self._members]:
            if connection in self._members:
                connection.send("closed")
            connection.close()
        self._listener.close()
        self._selector.close()

    def _is_through(self) -> bool:
        if self._closed_at is None:
            return False
        # How the main process ended is known as soon as its connection did.
        is_settled = all(member.process.place != _MAIN or member.has_left for member in self._members.values())
        is_told = not self._unaware and not (self._departed and self._waiting())
        if self._lost_main is not None:
            # Others may be about to connect.
            is_told = is_told and len(self._aware_nodes) >= self.address.num_nodes
        return (is_settled and is_told) or time.monotonic() - self._closed_at > _LAST_SECONDS

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = Connection(listener.accept()[0])
        except OSError:
            time.sleep(0.05)  # out of descriptors it would come back here at once
            return
        self._strangers[connection] = time.monotonic()
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop_strangers(self) -> None:
        latest = time.monotonic() - _STRANGER_SECONDS
        surplus = list(self._strangers)[: max(0, len(self._strangers) - _MOST_STRANGERS)]
        for connection in {*surplus, *(each for each, since in self._strangers.items() if since < latest)}:
            self._forget(connection)

    def _hear(self, connection: Connection) -> None:
        if connection not in self._strangers and connection not in self._members:
            return
        messages = connection.receive()
        if messages is None:
            self._forget(connection)
            return
        for message in messages:
            if connection in self._members:
                self._take(self._members[connection], message)
            elif not self._welcome(connection, message):
                self._forget(connection)
                return

    def _welcome(self, connection: Connection, message: Message) -> bool:
        """Take a stranger in whose first message says who it is, and return whether it does."""
        token = message.get("token")
        process = Process.from_message(message, self.address.num_nodes)
        given = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""
        is_ours = hmac.compare_digest(given, self.address.token.encode())
        if message.get("kind") != "hello" or not is_ours or process is None:
            return False
        del self._strangers[connection]
        same = (process.place, process.pid)
        for other in [each for each in self._members.values() if (each.process.place, each.process.pid) == same]:
            # The same process by another connection: the older one is gone, and that is no loss.
            other.has_left = True
            self._forget(other.connection)
        member = self._members[connection] = _Member(connection, process, read_phase(message))
        self._departed.pop(process.place, None)
        connection.send("welcome", main=self._main_phase)
        self._note_main(member)
        if self._first is not None and self._first.is_loss and self._failed_place == process.place:
            self._take_back()
        if self._first is not None:
            self._unaware.add(connection)
            connection.send("failed", reason=self._first.as_message())
        return True

    def _take(self, member: _Member, message: Message) -> None:
        kind = message.get("kind")
        if kind == "state":
            process = Process.from_message({**vars(member.process), "rank": message.get("rank")}, 1 << 20)
            member.process = process or member.process
            member.phase = read_phase(message)
            self._note_main(member)
        elif kind == "bye":
            member.has_left = True
            self._depart(member, by_itself=True)
        elif kind == "heard":
            self._aware_nodes.add(member.process.node_rank)
            self._now_aware(member.connection)
        elif kind == "failed":
            reason = Reason.from_message(message.get("reason"))
            # It will go now, and why is known.
            member.has_left = reason is not None
            if self._first is not None:
                member.connection.send("told_all")
            elif reason is not None:
                self._publish(reason, member.process, member.connection)

    def _note_main(self, member: _Member) -> None:
        if member.process.place == _MAIN:
            self._main_phase = member.phase
            self._send_all("main", main=self._main_phase)

    def _publish(self, reason: Reason, process: Process, publisher: Optional[Connection]) -> None:
        self._first, self._failed_place, self._publisher = reason, process.place, publisher
        self._aware_nodes = {process.node_rank}
        self._unaware = {each for each in self._members if each is not publisher}
        for connection in list(self._unaware):
            if not connection.send("failed", reason=reason.as_message()):
                self._unaware.discard(connection)
        self._now_aware(None)

    def _take_back(self) -> None:
        self._first, self._failed_place, self._publisher = None, None, None
        self._unaware.clear()
        self._send_all("back")

    def _send_all(self, kind: str, **content: Any) -> None:
        for connection in self._members:
            connection.send(kind, **content)

    def _now_aware(self, connection: Optional[Connection]) -> None:
        if connection is not None:
            self._unaware.discard(connection)
        # As long as nobody has joined, a host may not even be here yet.
        is_everybody_here = self._has_joined() or len(self._aware_nodes) >= self.address.num_nodes
        if not self._unaware and is_everybody_here and self._publisher is not None:
            self._publisher.send("told_all")
            self._publisher = None

    def _has_joined(self) -> bool:
        return any(member.phase in (Phase.TRAINING, Phase.IDLE) for member in self._members.values())

    def _waiting(self) -> List[_Member]:
        return [each for each in self._members.values() if each.phase == Phase.JOINING and not each.has_left]

    def _forget(self, connection: Connection) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.close()
        self._strangers.pop(connection, None)
        member = self._members.pop(connection, None)
        if member is None:
            return
        self._now_aware(connection)
        if member.has_left or self._first is not None:
            return
        # All join together, so that one who trains shows that each has joined.
        if member.phase == Phase.TRAINING or (member.phase == Phase.JOINING and self._has_joined()):
            if not self._has_other(member):
                self._publish(loss_of(member.process), member.process, None)
        else:
            self._depart(member, by_itself=False)

    def _has_other(self, member: _Member) -> bool:
        """Whether the place of a process is taken by another one, such as the program that started it."""
        others = [each for each in self._members.values() if each is not member and not each.has_left]
        return any(each.process.place == member.process.place for each in others)

    def _depart(self, member: _Member, *, by_itself: bool) -> None:
        """Note that a process is gone which had not joined yet."""
        if member.phase in (Phase.STARTING, Phase.JOINING) and not self._has_other(member):
            reason = early_exit_of(member.process) if by_itself else loss_of(member.process)
            self._departed[member.process.place] = (time.monotonic() + self._departed_seconds, reason)

    def _tell_departed(self) -> None:
        if self._lost_main is not None and self._first is None:
            self._publish(loss_of(self._lost_main), self._lost_main, None)
        for place, (due, reason) in list(self._departed.items()):
            waiting = [each for each in self._waiting() if each.process.place != place]
            if self._first is None and waiting and time.monotonic() >= due:
                process = Process(*place, reason.host, reason.rank)
                self._publish(reason, process, None)
