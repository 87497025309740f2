"""Messages over connections of asyncio, as the guard processes and the failure server exchange them."""

import asyncio
import socket
from typing import Any, Optional

from lightning_sm._failure.messages import Kind, Message, decode, encode

__all__ = ["MAX_LINE", "keep_alive", "receive", "send"]

# The longest message names the ranks of a world of thousands of processes.
MAX_LINE = 128 * 1024
# Detects a dead host after about two minutes, and keeps firewalls from dropping a connection that is idle for hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8))


async def receive(reader: asyncio.StreamReader) -> Optional[Message]:
    """Return the next message; ``None`` if the connection has ended or what comes is not a message."""
    try:
        return decode(await reader.readline())
    except (OSError, ValueError):  # the latter is for a line that is longer than the reader's limit
        return None


def send(writer: asyncio.StreamWriter, kind: Kind, **content: Any) -> None:
    """Send a message as soon as possible. To a connection that has ended, nothing is sent."""
    if not writer.is_closing():
        writer.write(encode(kind, **content))


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Notice the loss of the other host, also while nothing is sent."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
