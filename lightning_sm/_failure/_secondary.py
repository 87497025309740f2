"""Tells an error that another rank's end brought about from one with a cause of its own."""

import re
import socket
from typing import Iterator, Optional, Sequence

from lightning_sm._failure._frames import QuotedTraceback
from lightning_sm._failure._reason import message_of

__all__ = ["looks_secondary", "peer_host"]

# torch's own, since 2.0 and 2.2: torch/csrc/Exceptions.h.
_CLASSES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
# gloo/transport/tcp/pair.cc and buffer.cc; torch/csrc/distributed/c10d: ProcessGroupNCCL, ProcessGroupGloo, TCPStore,
# socket; ncclGetErrorString.
_MESSAGES = re.compile(
    r"gloo/|(?:pair|buffer)\.cc|application timeout caused pair closure|connectfullmesh|monitoredbarrier|"
    r"nccl ?(?:error|comm|watchdog|system|remote|internal|unhandled)|remote process exited|unhandled system error|"
    r"watchdog caught collective|(?:send|recv)(?:bytes|value|vector)|tcpstore|client socket",
    re.IGNORECASE,
)
# What others say of a connection of their own, too, so that it counts only where torch says it.
_OF_ANYBODY = re.compile(
    r"connection (?:closed by|reset by|refused)|broken pipe|socket ?timeout|timed out waiting \d+ ?ms|"
    r"timed out after \d+ ?ms|wait timeout|failed to recv",
    re.IGNORECASE,
)
_RAISERS = frozenset({"torch", "lightning", "lightning_fabric", "pytorch_lightning"})
_ADDRESS = re.compile(r"\[?((?:\d{1,3}\.){3}\d{1,3}|[0-9a-f]*:[0-9a-f:]+:[0-9a-f]*)\]?(?::\d+|<\d+>)", re.IGNORECASE)


def looks_secondary(error: BaseException) -> bool:
    """Whether ``error`` is one that torch raises when it loses a peer, waits for it in vain or cannot reach the store.

    Connection errors of other libraries, which talk to S3 and databases, are no ``RuntimeError``, or were not raised by
    torch; that of a data loader's worker, which torch raises once more, quotes a traceback.
    """
    if type(error).__name__ in _CLASSES:
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = message_of(error)
    if _MESSAGES.search(message) is not None:
        return True
    is_torchs = _raiser(error) in _RAISERS and QuotedTraceback.cause(message) is None
    return is_torchs and _OF_ANYBODY.search(message) is not None


def _raiser(error: BaseException) -> str:
    """The package whose code raised ``error``, directly or in its native code."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name, trace = str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_next
    return name.partition(".")[0]


def peer_host(message: str, hosts: Sequence[str]) -> Optional[str]:
    """Return which of ``hosts`` has an address that ``message`` names, if any."""
    addresses = set(_ADDRESS.findall(message))
    if not addresses:
        return None
    return next((host for host in hosts if addresses & set(_addresses_of(host))), None)


def _addresses_of(host: str) -> Iterator[str]:
    try:
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(address[0])
    except (OSError, UnicodeError):
        return
