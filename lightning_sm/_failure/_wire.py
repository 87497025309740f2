"""Messages between processes: one JSON object per line over TCP."""

import json
import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import Any, Dict, List, Optional

__all__ = ["Message", "Wire", "listen"]

# A fork's child, such as a data loader's worker, would keep connections open that end with its parent.
_open: "weakref.WeakSet[Wire]" = weakref.WeakSet()

Message = Dict[str, Any]

# A reason has 1,024 characters or so; whoever sends more is none of us.
_LONGEST = 64 * 1024
# How long sending and receiving may take.
_SECONDS = 1.0
# A dead host is noticed after about two minutes, and no firewall forgets a connection that is quiet for hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8))


class Wire:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()
        self._rest = b""
        _open.add(self)
        connection.settimeout(_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """For ``select``."""
        return self.socket.fileno()

    def send(self, kind: str, **content: Any) -> bool:
        """Send a message, and return whether it went out."""
        try:
            with self._lock:
                self.socket.sendall(json.dumps({"kind": kind, **content}).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> Optional[List[Message]]:
        """Return the messages that are there now, or ``None`` once the other end is gone."""
        try:
            content = self.socket.recv(4096)
        except socket.timeout:
            return []
        except OSError:
            return None
        lines = (self._rest + content).split(b"\n")
        self._rest = lines.pop()
        if not content or len(self._rest) > _LONGEST:
            return None
        return [message for message in map(_read, lines) if message is not None]

    def hang_up(self) -> None:
        """End the connection, whoever waits for something from it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def listen() -> socket.socket:
    """Return a socket that listens on a free port of every address of this host."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)


def _close_in_child() -> None:
    for wire in list(_open):
        wire.close()


os.register_at_fork(after_in_child=_close_in_child)


def _read(line: bytes) -> Optional[Message]:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
