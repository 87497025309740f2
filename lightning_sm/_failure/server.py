"""``FailureServer``: passes the first failure of any rank on to all ranks."""

import asyncio
import hmac
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Set, Tuple

from lightning_sm._failure.address import Address
from lightning_sm._failure.connection import MAX_LINE, keep_alive, receive, send
from lightning_sm._failure.failure_file import may_restart
from lightning_sm._failure.messages import (
    Delays,
    Kind,
    Message,
    Phase,
    ProcessInfo,
    RendezvousState,
    early_exit_reason,
    loss_reason,
    read_count,
    read_phase,
    read_reason,
)

__all__ = ["FailureServer"]

_CHECK_INTERVAL = 0.25
_HELLO_TIMEOUT = 5.0
# As many ranks may connect at once.
_BACKLOG = 1024
# How long a closing server still sends a failure to ranks that have not acknowledged it.
_CLOSE_TIMEOUT = 8.0


@dataclass
class _Member:
    """A rank whose guard is connected and has authenticated."""

    writer: asyncio.StreamWriter
    process: ProcessInfo
    phase: Phase
    has_left: bool = False


@dataclass(frozen=True)
class _Exit:
    """A rank that is gone, which is a failure after ``due`` if others wait for it."""

    due: float
    process: ProcessInfo
    phase: Phase
    reason: str


class FailureServer:
    """Keeps a connection to the guard of every rank, and sends the first failure of any to all.

    A guard authenticates (``HELLO``), then reports the phase of its rank (``STATE``), its failure (``FAILED``) or its
    exit (``EXIT``). Until it has authenticated, nothing is sent to it.

    A guard knows how its rank ended. If its connection ends before that, and it does not come back, its host is lost.

    It runs in the guard beside global rank 0. Where torchrun may start its workers again, those that connect while a
    server closes belong to the next attempt and are refused: rank 0's new server listens on the next port.

    Args:
        address: Where to listen, and the token of the job.
        delays: When an exit counts as a failure.
    """

    def __init__(self, address: Address, delays: Delays) -> None:
        self.address, self.delays = address, delays
        self._members: List[_Member] = []
        self._exits: Dict[Tuple[int, int], _Exit] = {}
        self._first: Optional[str] = None
        # Who failed first, and waits until all know of it.
        self._publisher: Optional[_Member] = None
        self._unacknowledged: List[_Member] = []
        # The hosts of which a process has been connected.
        self._nodes: Set[int] = set()
        self._is_closing = False

    async def run(self) -> None:
        """Listen on all interfaces, as torch's store does, until this is cancelled."""
        for port in itertools.cycle(self.address.ports):
            with suppress(OSError):
                await asyncio.start_server(self._serve, None, port, limit=MAX_LINE, backlog=_BACKLOG)
                break
            await asyncio.sleep(_CHECK_INTERVAL / 10)
        while True:
            self._report_exits()
            await asyncio.sleep(_CHECK_INTERVAL)

    async def close(self, main: ProcessInfo) -> None:
        """Send a failure to ranks that have not acknowledged it, then ``CLOSED`` to all.

        Args:
            main: The process beside which this server runs; its own connection has ended, or ends now.
        """
        self._is_closing, closed_at = True, time.monotonic()
        while self._is_awaited(main, time.monotonic() - closed_at):
            await asyncio.sleep(_CHECK_INTERVAL / 10)
        for member in self._members:
            send(member.writer, Kind.CLOSED)
            member.writer.close()
        # One turn of the loop writes what the sockets take at once, which is everything.
        await asyncio.sleep(0)

    def _is_awaited(self, main: ProcessInfo, seconds: float) -> bool:
        """Whether a rank may still need this server, which has been closing for a number of seconds."""
        if self._first is None and self._exits and self._joining():
            return True
        is_sending = any(each.process.pid == main.pid and each.process.slot == main.slot for each in self._members)
        return seconds < _CLOSE_TIMEOUT and (is_sending or (self._first is not None and not self._is_known()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer)
        member = None
        try:
            member = self._authenticate(await asyncio.wait_for(receive(reader), _HELLO_TIMEOUT), writer)
            while member is not None:
                message = await receive(reader)
                if message is None:
                    break
                self._handle(member, message)
        except asyncio.TimeoutError:
            pass
        finally:
            writer.close()
            if member is not None:
                self._disconnect(member)

    def _authenticate(self, message: Optional[Message], writer: asyncio.StreamWriter) -> Optional[_Member]:
        """Return the member that sent a valid ``HELLO``, else ``None``."""
        if message is None or message.get("kind") != Kind.HELLO or (self._is_closing and may_restart()):
            return None
        token = str(message.get("token")).encode("utf-8", "surrogatepass")
        process = ProcessInfo.from_message(message, self.address.num_nodes)
        if process is None or not hmac.compare_digest(token, self.address.token.encode()):
            return None
        for other in self._members:
            if (other.process.slot, other.process.pid) == (process.slot, process.pid):
                # The same one has connected again: the end of its older connection means nothing.
                other.has_left = True
                other.writer.close()
        self._exits.pop(process.slot, None)
        member = _Member(writer, process, read_phase(message))
        self._members.append(member)
        self._nodes.add(process.node_rank)
        send(writer, Kind.WELCOME)
        if self._first is not None:
            self._unacknowledged.append(member)
            send(writer, Kind.FAILED, reason=self._first)
        return member

    def _handle(self, member: _Member, message: Message) -> None:
        kind = message.get("kind")
        if kind == Kind.STATE:
            member.process = replace(member.process, rank=read_count(message.get("rank")))
            member.phase = read_phase(message)
        elif kind == Kind.WHO:
            local_size = read_count(message.get("local_size")) or 1
            send(member.writer, Kind.RENDEZVOUS, **self._rendezvous_state(local_size).to_message())
        elif kind == Kind.ACKNOWLEDGE:
            self._acknowledge(member)
        elif kind == Kind.EXIT:
            member.has_left = True
            self._note_exit(member, is_lost=message.get("is_lost") is True)
        elif kind == Kind.FAILED:
            reason = read_reason(message)
            # It exits now, and its reason is known.
            member.has_left = reason is not None
            if reason is not None and self._first is None:
                self._publish(reason, member)
            else:
                send(member.writer, Kind.ALL_ACKNOWLEDGED)

    def _disconnect(self, member: _Member) -> None:
        self._members.remove(member)
        self._acknowledge(member)
        if not member.has_left:
            self._exits[member.process.slot] = _Exit(
                time.monotonic() + self.delays.reconnect, member.process, member.phase, loss_reason(member.process)
            )

    def _note_exit(self, member: _Member, *, is_lost: bool) -> None:
        """Note the end of a rank that others may wait for: it was lost, or has not joined them."""
        if not is_lost and member.phase not in (Phase.STARTING, Phase.JOINING):
            return
        if is_lost:
            delay = 0.0 if self._is_in_group(member.phase) else self.delays.early_loss
        else:
            delay = self.delays.early_exit
        reason = loss_reason(member.process) if is_lost else early_exit_reason(member.process)
        self._exits[member.process.slot] = _Exit(time.monotonic() + delay, member.process, member.phase, reason)
        self._report_exits()

    def _report_exits(self) -> None:
        """Publish the first exit for which others wait: they train with that rank, or wait for it to join them."""
        for slot, each in list(self._exits.items()):
            is_awaited = each.phase != Phase.IDLE and any(member.process.slot != slot for member in self._joining())
            is_failure = is_awaited or self._is_in_group(each.phase)
            if is_failure and self._first is None and time.monotonic() >= each.due:
                self._publish(each.reason, None)

    def _publish(self, reason: str, publisher: Optional[_Member]) -> None:
        self._first, self._publisher = reason, publisher
        self._unacknowledged = [member for member in self._members if member is not publisher]
        for member in self._unacknowledged:
            send(member.writer, Kind.FAILED, reason=reason)
        self._acknowledge(publisher)

    def _acknowledge(self, member: Optional[_Member]) -> None:
        """Note that a rank knows of the failure, or needs not to, and tell the publisher once all do."""
        if member in self._unacknowledged:
            self._unacknowledged.remove(member)
        if self._publisher is not None and self._is_known():
            send(self._publisher.writer, Kind.ALL_ACKNOWLEDGED)
            self._publisher = None

    def _is_known(self) -> bool:
        """Whether the failure is known on all hosts; one that has not started yet waits for its reason."""
        return not self._unacknowledged and len(self._nodes) >= self.address.num_nodes

    def _is_in_group(self, phase: Phase) -> bool:
        """Whether a rank in this phase is a member: init_process_group returns on all ranks together."""
        has_returned = any(member.phase in (Phase.TRAINING, Phase.IDLE) for member in self._members)
        return phase == Phase.TRAINING or (phase == Phase.JOINING and has_returned)

    def _joining(self) -> List[_Member]:
        return [member for member in self._members if member.phase == Phase.JOINING and not member.has_left]

    def _rendezvous_state(self, local_size: int) -> RendezvousState:
        """Who has joined. Lightning's own processes know their rank only then, so it is computed until then."""
        members = [each for each in self._members if not each.has_left]
        ranks = {
            each.process.slot: each.process.node_rank * local_size + each.process.local_rank
            if each.process.rank is None
            else each.process.rank
            for each in members
        }
        return RendezvousState(
            frozenset(ranks[each.process.slot] for each in members if each.phase != Phase.STARTING),
            frozenset(ranks[each.process.slot] for each in members if each.phase == Phase.STARTING),
            frozenset(each.process.host for each in members if each.process.host is not None),
        )
