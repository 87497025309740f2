"""Starting a host's process tree, reading what it writes, and ending all of it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Dict, Optional, Tuple

from ._container_files import write_ml
from ._plan import Plan
from ._processes import end_all_with
from ._sigterm import send_sigterm
from ._tree import Tree

__all__ = ["RunningHost", "host_command", "prepare_host"]

_NAMESPACES = ("--net", "--mount", "--uts", "--ipc")


def host_command(plan: Plan, tree: Tree, host: str) -> Tuple[str, ...]:
    """The command that is the host, seen from the stage."""
    if not plan.namespaced:
        return plan.request.command
    inside = (sys.executable, "-m", "lightning_sm.rehearse._container", "enter", str(tree.root), host)
    return ("unshare", *_NAMESPACES, *inside)


def prepare_host(plan: Plan, tree: Tree, host: str) -> None:
    """The files that the host starts with."""
    ml = tree.ml(host)
    write_ml(plan.request, host, ml, interface=plan.interface, base=plan.base(tree, host))
    if plan.namespaced:
        tree.image(host).mkdir(parents=True)
        tree.layer(host).mkdir(parents=True)
        return
    for channel in plan.request.channels:
        target = ml / "input" / "data" / channel.name
        if channel.path.is_dir():
            target.symlink_to(channel.path, target_is_directory=True)
        else:
            target.mkdir()
            (target / channel.path.name).symlink_to(channel.path)


class RunningHost:
    """A started host. What it writes goes line by line, with its name, to ``lines``."""

    def __init__(self, plan: Plan, tree: Tree, host: str, lines: queue.Queue[Tuple[str, str]]) -> None:
        self.host = host
        self._marker = None if plan.namespaced else str(tree.ml(host))
        self._started = time.monotonic()
        self._ended: Optional[float] = None
        environment: Dict[str, str] = plan.variables(tree, host) if not plan.namespaced else dict(os.environ)
        self._process = subprocess.Popen(
            host_command(plan, tree, host),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=None if plan.namespaced else str(tree.ml(host)),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> Optional[int]:
        """The exit code, or ``None`` while it runs."""
        code = self._process.poll()
        if code is not None and self._ended is None:
            self._ended = time.monotonic()
        # As shells and container engines count a signal.
        return 128 - code if code is not None and code < 0 else code

    @property
    def seconds(self) -> float:
        """How long it ran, so far."""
        return (self._ended or time.monotonic()) - self._started

    def stop(self) -> str:
        """Send SIGTERM to the container's process 1 as a container engine does, and tell what becomes of it."""
        return send_sigterm(self._process.pid, is_namespaced=self._marker is None)

    def end(self) -> None:
        """Kill whatever of the host is left, and wait until it is gone. A namespace goes with its first process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._marker is not None:
            end_all_with(self._marker)
        self._process.wait()
        self._ended = self._ended or time.monotonic()
        self._reader.join(timeout=5.0)

    def _read(self, lines: queue.Queue[Tuple[str, str]]) -> None:
        assert self._process.stdout is not None
        for raw in iter(self._process.stdout.readline, b""):
            lines.put((self.host, raw.decode("utf-8", "replace")))
