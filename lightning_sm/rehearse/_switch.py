"""A network switch in user space that delivers each frame late: latency without ``netem``, which many kernels lack.

Run as ``python -m lightning_sm.rehearse._switch SECONDS FILE...``: one open file for the TAP device of each host.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import subprocess
import sys
import time
from typing import Deque, Dict, List, Optional, Sequence, Tuple

from ._netns import port_name
from ._request import Link
from ._tap import HEADER, open_tap

__all__ = ["Switch", "start_switch"]

# The largest frame that the kernel leaves uncut, with its headers.
_FRAME = 65536 + 64

# So many frames of one host are taken before another host's turn, and before what is due is delivered.
_TURN = 64


class Switch:
    """Which ports a frame leaves by, and when. It has learned where an address is once that has sent something."""

    def __init__(self, ports: Sequence[int], delay: float) -> None:
        self._ports, self._delay = tuple(ports), delay
        self._learned: Dict[bytes, int] = {}
        # All wait equally long, so what came first is always due first.
        self._waiting: Deque[Tuple[float, int, bytes]] = collections.deque()

    def take(self, port: int, frame: bytes, now: float) -> None:
        """A frame came in. It goes to the port of its target; to all others when that is not known, or for all."""
        target, source = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
        self._learned[source] = port
        known = self._learned.get(target)
        for other in self._ports if known is None else (known,):
            if other != port:
                self._waiting.append((now + self._delay, other, frame))

    def due(self, now: float) -> List[Tuple[int, bytes]]:
        """The frames whose time has come, with their ports. They are delivered once."""
        ready = []
        while self._waiting and self._waiting[0][0] <= now:
            ready.append(self._waiting.popleft()[1:])
        return ready

    def rest(self, now: float) -> Optional[float]:
        """How many seconds until a frame is due; ``None`` when none waits."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def start_switch(hosts: Sequence[str], link: Link) -> Optional[subprocess.Popen[bytes]]:
    """Where a latency is asked for: a TAP device for each host, and the process behind all of them.

    A process of its own, because a thread would wait for the stage's other threads. The devices end with it, and it
    ends at the latest with the stage's process namespace.

    Raises:
        RehearsalError: The kernel does not make the devices.
    """
    if link.latency_ms is None:
        return None
    files: List[int] = []
    try:
        for host in hosts:
            files.append(open_tap(port_name(host)))
        command = [sys.executable, "-m", "lightning_sm.rehearse._switch", str(link.latency_ms / 1000.0)]
        return subprocess.Popen([*command, *map(str, files)], pass_fds=files, stdin=subprocess.DEVNULL)
    finally:
        for file in files:
            os.close(file)


def _run(files: Sequence[int], delay: float) -> None:
    """Switch until no device is left."""
    switch, left = Switch(files, delay), list(files)
    while left:
        # select, because the others round a time up to whole milliseconds.
        readable, _, _ = select.select(left, (), (), switch.rest(time.monotonic()))
        for file in readable:
            try:
                for _ in range(_TURN):
                    switch.take(file, os.read(file, _FRAME), time.monotonic())
            except BlockingIOError:
                continue
            except OSError:
                # The device is gone with its host.
                left.remove(file)
        for file, frame in switch.due(time.monotonic()):
            # A host that is not up, or gone, or slower than its traffic, loses frames as on any network.
            with contextlib.suppress(OSError):
                os.write(file, frame)


if __name__ == "__main__":
    _run([int(word) for word in sys.argv[2:]], float(sys.argv[1]))
