"""``FailureServer``: passes the first failure of any rank on to all ranks."""

import asyncio
import hmac
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Set, Tuple

from lightning_sm._failure.address import Address
from lightning_sm._failure.failure_file import may_restart
from lightning_sm._failure.messages import (
    Delays,
    Kind,
    Message,
    Phase,
    ProcessInfo,
    RendezvousState,
    early_exit_reason,
    keep_alive,
    loss_reason,
    read_count,
    read_phase,
    read_reason,
    receive,
    send,
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
    phase: Phase = Phase.STARTING
    has_left: bool = False
    # Whether the first failure is written on its host.
    knows: bool = False


@dataclass(frozen=True)
class _Exit:
    """A rank that is gone, which is a failure after ``due`` if others wait for it."""

    due: float
    phase: Phase
    reason: str


class FailureServer:
    """Keeps a connection to the guard of every rank, and sends the first failure of any to all.

    A guard authenticates (``HELLO``), then reports the phase or the failure of its rank (``STATE``), or its exit
    (``EXIT``). Until it has authenticated, nothing is sent to it.

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
        # The hosts of which a process has been connected.
        self._nodes: Set[int] = set()
        self._is_closing = False

    async def run(self) -> None:
        """Listen on all interfaces, as torch's store does, until this is cancelled."""
        for port in itertools.cycle(self.address.ports):
            with suppress(OSError):
                await asyncio.start_server(self._serve, None, port, backlog=_BACKLOG)
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
            while member is not None and (message := await receive(reader)) is not None:
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
        member = _Member(writer, process)
        self._members.append(member)
        self._nodes.add(process.node_rank)
        send(writer, Kind.WELCOME)
        if self._first is not None:
            send(writer, Kind.FAILED, reason=self._first)
        return member

    def _handle(self, member: _Member, message: Message) -> None:
        kind = message.get("kind")
        if kind == Kind.STATE:
            member.process = replace(member.process, rank=read_count(message.get("rank")))
            member.phase, reason = read_phase(message), read_reason(message)
            if reason is not None:
                # It exits now, and its reason is known.
                member.has_left = True
                self._publish(reason, member)
        elif kind == Kind.ACKNOWLEDGE:
            member.knows = True
            self._tell_publisher()
        elif kind == Kind.EXIT:
            self._note_exit(member, is_lost=message.get("is_lost") is True)

    def _disconnect(self, member: _Member) -> None:
        self._members.remove(member)
        self._tell_publisher()
        if not member.has_left:
            self._add_exit(member, self.delays.reconnect, loss_reason(member.process))

    def _note_exit(self, member: _Member, *, is_lost: bool) -> None:
        """Note the end of a rank that others may wait for: it was lost, or has not joined them."""
        member.has_left = True
        if is_lost:
            delay = 0.0 if self._is_in_group(member.phase) else self.delays.early_loss
            self._add_exit(member, delay, loss_reason(member.process))
        elif member.phase in (Phase.STARTING, Phase.JOINING):
            self._add_exit(member, self.delays.early_exit, early_exit_reason(member.process))

    def _add_exit(self, member: _Member, delay: float, reason: str) -> None:
        self._exits[member.process.slot] = _Exit(time.monotonic() + delay, member.phase, reason)
        self._report_exits()

    def _report_exits(self) -> None:
        """Publish the first exit for which others wait: they train with that rank, or wait for it to join them."""
        for slot, each in list(self._exits.items()):
            is_awaited = each.phase != Phase.IDLE and any(member.process.slot != slot for member in self._joining())
            if (is_awaited or self._is_in_group(each.phase)) and time.monotonic() >= each.due:
                self._publish(each.reason, None)

    def _publish(self, reason: str, publisher: Optional[_Member]) -> None:
        """Send the first failure to all but the rank that it comes from; later ones follow from it."""
        if self._first is not None:
            return
        self._first, self._publisher = reason, publisher
        for member in self._members:
            if member is publisher:
                member.knows = True
            else:
                send(member.writer, Kind.FAILED, reason=reason)
        self._tell_publisher()

    def _tell_publisher(self) -> None:
        """Tell the rank that has failed once all hosts know it."""
        if self._publisher is not None and self._is_known():
            send(self._publisher.writer, Kind.KNOWN)
            self._publisher = None

    def _is_known(self) -> bool:
        """Whether the failure is known on all hosts; one that has not started yet waits for its reason."""
        return all(member.knows for member in self._members) and len(self._nodes) >= self.address.num_nodes

    def _is_in_group(self, phase: Phase) -> bool:
        """Whether a rank in this phase is a member: init_process_group returns on all ranks together."""
        has_returned = any(member.phase in (Phase.TRAINING, Phase.IDLE) for member in self._members)
        return phase == Phase.TRAINING or (phase == Phase.JOINING and has_returned)

    def _joining(self) -> List[_Member]:
        return [member for member in self._members if member.phase == Phase.JOINING and not member.has_left]

    def rendezvous_state(self, local_size: int) -> RendezvousState:
        """Return who has joined.

        Args:
            local_size: Processes of each host.
        """
        present = [each for each in self._members if not each.has_left]
        starting = {each.process.rank_among(local_size) for each in present if each.phase == Phase.STARTING}
        ranks = {each.process.rank_among(local_size) for each in present}
        hosts = {each.process.host for each in present if each.process.host is not None}
        return RendezvousState(tuple(ranks - starting), tuple(starting), tuple(hosts))
