"""``FailureServer``: passes the first failure of any rank on to all ranks."""

import hmac
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from lightning_sm._failure.connection import (
    Address,
    Connection,
    Message,
    MessageKind,
    Phase,
    ProcessInfo,
    early_exit_reason,
    listen,
    loss_reason,
    read_phase,
)
from lightning_sm._failure.failure_file import may_restart
from lightning_sm._failure.rank_ranges import RankRanges, RendezvousState
from lightning_sm._failure.reason import FailureReason

__all__ = ["FailureServer"]

_SELECT_TIMEOUT = 0.5
# Connections that have not authenticated: how long they are kept, and how many.
_HELLO_TIMEOUT = 5.0
_MAX_PENDING = 64
# How long a closing server still sends a failure to ranks that have not acknowledged it.
_CLOSE_TIMEOUT = 8.0
_MAIN_SLOT = (0, 0)
_MAX_LOCAL_SIZE = 1024


@dataclass
class _Member:
    """A process that is connected and has authenticated."""

    connection: Connection
    process: ProcessInfo
    phase: Phase
    has_left: bool = False


class FailureServer:
    """Keeps a connection to every process of a job, and sends the first failure of any to all.

    A process authenticates (``HELLO``), then reports its phase (``STATE``), its failure (``FAILED``) or its regular
    exit (``LEAVE``). Until it has authenticated, nothing is sent to it. Its connection ends when it exits, however it
    does.

    If the connection of a training process ends without a ``LEAVE``, the process is lost. That is sent at once, because
    a launcher ends the other ranks within a tenth of a second, and retracted if the process reconnects. A process that
    exits before it has joined the process group is reported after a delay, and only if another one waits in
    ``init_process_group``: a SIGTERM that stops the job ends all of them within that time.

    It runs in the guard process beside global rank 0. Where torchrun may start its workers again, those that connect
    while a server closes belong to the next attempt and are refused: rank 0's new server listens on the next port.

    Args:
        address: Where to listen, and the token of the job.
        early_exit_delay: Seconds until a process that exited before joining is reported.
    """

    def __init__(self, address: Address, *, early_exit_delay: float = 5.0) -> None:
        self.address = address
        self._early_exit_delay = early_exit_delay
        self._pending: Dict[Connection, float] = {}
        self._members: Dict[Connection, _Member] = {}
        self._early_exits: Dict[Tuple[int, int], Tuple[float, FailureReason]] = {}
        self._first: Optional[FailureReason] = None
        # Who failed first: the connection that waits until all have acknowledged, and the slot.
        self._publisher: Optional[Connection] = None
        self._failed_slot: Optional[Tuple[int, int]] = None
        self._unacknowledged: Set[Connection] = set()
        self._acknowledged_nodes: Set[int] = set()
        self._main_phase = Phase.STARTING
        self._closed_at: Optional[float] = None
        self._lost_main: Optional[ProcessInfo] = None
        self._listener: Optional[socket.socket] = None
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-failure-server", daemon=True)

    def start(self) -> None:
        """Start the thread, which listens as soon as the name of this host resolves."""
        self._thread.start()

    def close(self, lost: Optional[ProcessInfo] = None) -> None:
        """Send a failure to ranks that have not acknowledged it, then ``CLOSED`` to all, and stop.

        Args:
            lost: The process beside which this server runs, if it was killed while it trained.
        """
        self._lost_main = lost
        self._closed_at = time.monotonic()
        self._thread.join(_CLOSE_TIMEOUT + 2 * _SELECT_TIMEOUT)

    def _run(self) -> None:
        while self._listener is None:
            self._listener = listen(self.address)
            if self._listener is None:
                if self._closed_at is not None:
                    return
                time.sleep(_SELECT_TIMEOUT)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._is_done():
            for key, _ in self._selector.select(_SELECT_TIMEOUT):
                if key.data is None:
                    self._accept(self._listener)
                    continue
                try:
                    self._receive(key.data)
                except Exception:  # an error of one connection must not end the others
                    self._disconnect(key.data)
            self._drop_pending()
            self._report_exits()
        for connection in [*self._pending, *self._members]:
            if connection in self._members:
                connection.send(MessageKind.CLOSED)
            connection.close()
        self._listener.close()
        self._selector.close()

    def _is_done(self) -> bool:
        if self._closed_at is None:
            return False
        # How the main process exited is known once its connection has ended.
        is_main_gone = all(member.process.slot != _MAIN_SLOT or member.has_left for member in self._members.values())
        is_acknowledged = not self._unacknowledged and not (self._early_exits and self._joining_members())
        if self._lost_main is not None:
            # Processes of other hosts may be about to connect.
            is_acknowledged = is_acknowledged and len(self._acknowledged_nodes) >= self.address.num_nodes
        return (is_main_gone and is_acknowledged) or time.monotonic() - self._closed_at > _CLOSE_TIMEOUT

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = Connection(listener.accept()[0])
        except OSError:
            time.sleep(0.05)  # without file descriptors left, select would return at once again
            return
        self._pending[connection] = time.monotonic()
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop_pending(self) -> None:
        latest = time.monotonic() - _HELLO_TIMEOUT
        surplus = list(self._pending)[: max(0, len(self._pending) - _MAX_PENDING)]
        for connection in {*surplus, *(each for each, since in self._pending.items() if since < latest)}:
            self._disconnect(connection)

    def _receive(self, connection: Connection) -> None:
        if connection not in self._pending and connection not in self._members:
            return
        messages = connection.receive()
        if messages is None:
            self._disconnect(connection)
            return
        for message in messages:
            if connection in self._members:
                self._handle(self._members[connection], message)
            elif not self._authenticate(connection, message):
                self._disconnect(connection)
                return

    def _authenticate(self, connection: Connection, message: Message) -> bool:
        """Make a connection a member if its first message is a valid ``HELLO``, and return whether it is."""
        token = message.get("token")
        process = ProcessInfo.from_message(message, self.address.num_nodes)
        given = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""
        is_valid = hmac.compare_digest(given, self.address.token.encode())
        is_over = self._closed_at is not None and may_restart()
        if message.get("kind") != MessageKind.HELLO or not is_valid or process is None or is_over:
            return False
        del self._pending[connection]
        same = (process.slot, process.pid)
        for other in [each for each in self._members.values() if (each.process.slot, each.process.pid) == same]:
            # The same process has reconnected: the end of its older connection is not a loss.
            other.has_left = True
            self._disconnect(other.connection)
        member = self._members[connection] = _Member(connection, process, read_phase(message))
        self._early_exits.pop(process.slot, None)
        connection.send(MessageKind.WELCOME, main_phase=self._main_phase)
        self._update_main_phase(member)
        if self._first is not None and self._first.is_loss and self._failed_slot == process.slot:
            self._retract()
        if self._first is not None:
            self._unacknowledged.add(connection)
            connection.send(MessageKind.FAILED, reason=self._first.to_message())
        return True

    def _handle(self, member: _Member, message: Message) -> None:
        kind = message.get("kind")
        if kind == MessageKind.STATE:
            process = ProcessInfo.from_message({**vars(member.process), "rank": message.get("rank")}, 1 << 20)
            member.process = process or member.process
            member.phase = read_phase(message)
            self._update_main_phase(member)
        elif kind == MessageKind.WHO:
            local_size = message.get("local_size")
            is_size = isinstance(local_size, int) and 0 < local_size <= _MAX_LOCAL_SIZE
            state = self._rendezvous_state(int(local_size or 1) if is_size else 1)
            member.connection.send(MessageKind.RENDEZVOUS, **state.to_message())
        elif kind == MessageKind.LEAVE:
            member.has_left = True
            self._note_early_exit(member, is_regular=True)
        elif kind == MessageKind.ACKNOWLEDGE:
            self._acknowledged_nodes.add(member.process.node_rank)
            self._acknowledge(member.connection)
        elif kind == MessageKind.FAILED:
            reason = FailureReason.from_message(message.get("reason"))
            # It exits now, and its reason is known.
            member.has_left = reason is not None
            if self._first is not None:
                member.connection.send(MessageKind.ALL_ACKNOWLEDGED)
            elif reason is not None:
                self._publish(reason, member.process, member.connection)

    def _update_main_phase(self, member: _Member) -> None:
        if member.process.slot == _MAIN_SLOT:
            self._main_phase = member.phase
            self._broadcast(MessageKind.MAIN_PHASE, main_phase=self._main_phase)

    def _publish(self, reason: FailureReason, process: ProcessInfo, publisher: Optional[Connection]) -> None:
        self._first, self._failed_slot, self._publisher = reason, process.slot, publisher
        self._acknowledged_nodes = {process.node_rank}
        self._unacknowledged = {each for each in self._members if each is not publisher}
        for connection in list(self._unacknowledged):
            if not connection.send(MessageKind.FAILED, reason=reason.to_message()):
                self._unacknowledged.discard(connection)
        self._acknowledge(None)

    def _retract(self) -> None:
        self._first, self._failed_slot, self._publisher = None, None, None
        self._unacknowledged.clear()
        self._broadcast(MessageKind.RETRACT)

    def _broadcast(self, kind: MessageKind, **content: Any) -> None:
        for connection in self._members:
            connection.send(kind, **content)

    def _acknowledge(self, connection: Optional[Connection]) -> None:
        """Note that a process knows of the failure, or needs not to, and tell the publisher once all do."""
        if connection is not None:
            self._unacknowledged.discard(connection)
        # Before the ranks have joined, a host may not have started yet.
        is_complete = self._has_joined() or len(self._acknowledged_nodes) >= self.address.num_nodes
        if not self._unacknowledged and is_complete and self._publisher is not None:
            self._publisher.send(MessageKind.ALL_ACKNOWLEDGED)
            self._publisher = None

    def _has_joined(self) -> bool:
        return any(member.phase in (Phase.TRAINING, Phase.IDLE) for member in self._members.values())

    def _rendezvous_state(self, local_size: int) -> RendezvousState:
        """Who has joined. Lightning's own processes know their rank only then, so it is computed until then."""
        joined: List[int] = []
        starting: List[int] = []
        members = [each for each in self._members.values() if not each.has_left]
        for member in members:
            process = member.process
            rank = process.node_rank * local_size + process.local_rank if process.rank is None else process.rank
            (starting if member.phase == Phase.STARTING else joined).append(rank)
        hosts = sorted({each.process.host for each in members if each.process.host is not None})
        return RendezvousState(RankRanges.of(joined), RankRanges.of(starting), tuple(hosts))

    def _joining_members(self) -> List[_Member]:
        return [each for each in self._members.values() if each.phase == Phase.JOINING and not each.has_left]

    def _disconnect(self, connection: Connection) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.close()
        self._pending.pop(connection, None)
        member = self._members.pop(connection, None)
        if member is None:
            return
        self._acknowledge(connection)
        if member.has_left or self._first is not None:
            return
        # init_process_group returns on all ranks together: if one is training, all have joined.
        if member.phase == Phase.TRAINING or (member.phase == Phase.JOINING and self._has_joined()):
            if not self._is_slot_taken(member):
                self._publish(loss_reason(member.process), member.process, None)
        else:
            self._note_early_exit(member, is_regular=False)

    def _is_slot_taken(self, member: _Member) -> bool:
        """Whether another process, such as the one that started it, is connected with the same ranks."""
        others = [each for each in self._members.values() if each is not member and not each.has_left]
        return any(each.process.slot == member.process.slot for each in others)

    def _note_early_exit(self, member: _Member, *, is_regular: bool) -> None:
        """Note that a process exited before it had joined the process group."""
        if member.phase in (Phase.STARTING, Phase.JOINING) and not self._is_slot_taken(member):
            reason = early_exit_reason(member.process) if is_regular else loss_reason(member.process)
            self._early_exits[member.process.slot] = (time.monotonic() + self._early_exit_delay, reason)

    def _report_exits(self) -> None:
        if self._lost_main is not None and self._first is None:
            self._publish(loss_reason(self._lost_main), self._lost_main, None)
        for slot, (due, reason) in list(self._early_exits.items()):
            is_awaited = any(each.process.slot != slot for each in self._joining_members())
            if self._first is None and is_awaited and time.monotonic() >= due:
                self._publish(reason, ProcessInfo(*slot, reason.host, reason.rank), None)
