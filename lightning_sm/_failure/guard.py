"""The guard: a process beside each rank that survives it, and shares failures with the guards of the other ranks.

A rank that is killed, or that aborts in native code, cannot write anything, and on a host with one rank no other
process of the job runs. The toolkit then reports ``ExitCode -9``; on the worker hosts of ``mpirun``, and for a rank
that gloo's ``EnforceNotMet`` aborted, it reports success: ``sagemaker_training/mpi.py``,
``sagemaker_pytorch_container/training.py``. A launcher kills the other ranks within a tenth of a second, too.

The guard of global rank 0 also runs the failure server, so that the end of rank 0 does not end it.

    rank ◄── socket pair ──► guard ◄── TCP ──► server in rank 0's guard ◄── TCP ──► guard ◄── socket pair ──► rank
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Optional, Tuple

from lightning_sm._failure.failure_file import count_oom_kills, write_failure
from lightning_sm._failure.messages import (
    GuardSettings,
    Kind,
    Message,
    Phase,
    ProcessInfo,
    keep_alive,
    loss_reason,
    read_phase,
    read_reason,
    receive,
    send,
)
from lightning_sm._failure.server import FailureServer

__all__ = ["main"]

_CONNECT_TIMEOUT = 2.0
_POLL_INTERVAL = 0.2
# How long the failure of a rank that has ended is still sent.
_SEND_TIMEOUT = 8.0
# How long a rank that has not joined waits for a server that has vanished.
_VANISHED_TIMEOUT = 30.0

_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Guard:
    """Passes messages between its rank and the server, and reports the end of its rank.

    Args:
        rank: The connection to the rank.
        settings: What the rank has said first.
    """

    def __init__(self, rank: asyncio.StreamWriter, settings: GuardSettings) -> None:
        self._rank, self._failure_file = rank, settings.failure_file
        self._process, self._address, self._delays = settings.process, settings.address, settings.delays
        self._server = FailureServer(settings.address, settings.delays) if settings.is_main else None
        self._phase = Phase.STARTING
        self._has_joined = False
        self._connection: Optional[asyncio.StreamWriter] = None
        # The failure of this rank, and the first one of any rank.
        self._own_failure: Optional[str] = None
        self._first_failure: Optional[str] = None
        self._has_left = False
        self._is_known = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Follow the rank until it ends, then report how."""
        following = asyncio.ensure_future(self._stay_connected())
        if self._server is not None:
            self._serving = asyncio.ensure_future(self._server.run())
        while (message := await receive(reader)) is not None:
            self._handle_rank(message)
        await self._report_end()
        following.cancel()
        if self._connection is not None:
            self._connection.close()
        if self._server is not None:
            await self._server.close(self._process)

    def _handle_rank(self, message: Message) -> None:
        kind = message["kind"]
        if kind == Kind.STATE:
            self._phase, self._own_failure = read_phase(message), message["reason"]
            self._process = replace(self._process, rank=message["rank"])
            self._has_joined = self._has_joined or self._phase in (Phase.TRAINING, Phase.IDLE)
            self._send_state()
        elif kind == Kind.LEAVE:
            self._has_left = True
        elif self._server is not None:
            send(self._rank, Kind.RENDEZVOUS, **asdict(self._server.rendezvous_state(message["local_size"])))

    def _send_state(self) -> None:
        send(self._connection, Kind.STATE, phase=self._phase, rank=self._process.rank, reason=self._own_failure)

    async def _report_end(self) -> None:
        if self._own_failure is None and self._first_failure is None:
            if self._phase == Phase.TRAINING and not self._has_left:
                kills = count_oom_kills()
                note = f"; OOM kills in this container (cgroup oom_kill): {kills}" if kills else ""
                self._own_failure = loss_reason(self._process) + note
                write_failure(self._failure_file, self._own_failure)
                self._send_state()
            else:
                send(self._connection, Kind.EXIT, is_lost=not self._has_left)
        # A rank that leaves by itself has waited for the others.
        if self._own_failure is not None and not self._has_left:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_known.wait(), _SEND_TIMEOUT)

    async def _stay_connected(self) -> None:
        vanished_at: Optional[float] = None
        while True:
            streams = await self._connect()
            if streams is not None:
                is_closed = await self._follow_server(*streams)
                if is_closed and self._has_joined:
                    return
                # Before this process has joined, the server may be that of a program that only read the job.
                vanished_at = None if is_closed else time.monotonic()
            elif self._is_lost(vanished_at):
                if self._phase != Phase.IDLE:
                    self._receive_failure(loss_reason(ProcessInfo(0, 0, self._address.host, 0)))
                return
            await asyncio.sleep(_POLL_INTERVAL)

    def _is_lost(self, vanished_at: Optional[float]) -> bool:
        """Whether the server, and with it the host of rank 0, has been gone for too long."""
        timeout = self._delays.reconnect if self._has_joined else _VANISHED_TIMEOUT
        return vanished_at is not None and time.monotonic() - vanished_at > timeout

    async def _connect(self) -> Optional[_Streams]:
        """Return a connection to the server, or ``None`` if there is none at the moment."""
        for port in self._address.ports:
            with suppress(OSError, UnicodeError, asyncio.TimeoutError):
                connecting = asyncio.open_connection(self._address.host, port)
                reader, writer = await asyncio.wait_for(connecting, _CONNECT_TIMEOUT)
                keep_alive(writer)
                send(writer, Kind.HELLO, token=self._address.token, **asdict(self._process))
                answer = await asyncio.wait_for(receive(reader), _CONNECT_TIMEOUT)
                if answer is not None and answer.get("kind") == Kind.WELCOME:
                    return reader, writer
                writer.close()
        return None

    async def _follow_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Receive until the connection ends, and return whether the server has closed it."""
        self._connection = writer
        self._send_state()
        while (message := await receive(reader)) is not None and message.get("kind") != Kind.CLOSED:
            self._handle_server(message, writer)
        self._connection = None
        writer.close()
        return message is not None

    def _handle_server(self, message: Message, writer: asyncio.StreamWriter) -> None:
        kind, reason = message.get("kind"), read_reason(message)
        if kind == Kind.FAILED and reason is not None:
            self._receive_failure(reason)
            send(writer, Kind.ACKNOWLEDGE)
        elif kind == Kind.KNOWN:
            self._is_known.set()
            send(self._rank, Kind.KNOWN)

    def _receive_failure(self, reason: str) -> None:
        """Write another rank's failure to this host's failure file, and tell this rank."""
        self._first_failure = reason
        write_failure(self._failure_file, reason)
        self._is_known.set()
        send(self._rank, Kind.FAILED, reason=reason)


async def _run() -> None:
    # The rank's end of the socket pair is this process's standard input.
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=0))
    settings = await receive(reader)
    if settings is not None:
        await _Guard(writer, GuardSettings.from_message(settings)).run(reader)


def main() -> None:
    """Run the guard process until the rank that started it has ended and the other ranks know it."""
    asyncio.new_event_loop().run_until_complete(_run())
    # Neither tasks nor a thread that resolves a name delay the end.
    os._exit(0)
