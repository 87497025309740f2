"""The processes of one host: starting them, reading their output, stopping and killing all of them."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from lightning_sm.launch._line import link_channel, write_opt_ml
from lightning_sm.rehearse._container import prepare_container
from lightning_sm.rehearse._plan import RehearsalPlan

__all__ = ["HostProcess", "kill_marked"]


class HostProcess:
    """A started host.

    Args:
        plan: What the host is told.
        host: The host's name.
        lines: Gets what the host writes, line by line, each with the host's name.
    """

    def __init__(self, plan: RehearsalPlan, host: str, lines: "queue.Queue[Tuple[str, str]]") -> None:
        self.host = host
        self._is_namespaced = plan.isolation != "loopback"
        self._marker = str(plan.folder.opt_ml(host))
        self._started = time.monotonic()
        self._ended: Optional[float] = None
        write_opt_ml(plan.folder.opt_ml(host), plan.config_files(host))
        command = prepare_container(plan, host) if self._is_namespaced else _prepare_loopback(plan, host)
        self._process = subprocess.Popen(
            command,
            env=plan.variables(host),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._marker,
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
        """How long it has run."""
        return (self._ended or time.monotonic()) - self._started

    @property
    def is_read(self) -> bool:
        """Whether lines that it wrote may still come."""
        return self._reader.is_alive()

    def stop(self) -> str:
        """Send SIGTERM to process 1 as a container engine does, and return what happened.

        The kernel drops a signal for which process 1 of a namespace has no handler. A container without a process
        namespace is treated the same.
        """
        process = _find_process_one(self._process.pid) if self._is_namespaced else self._process.pid
        if process is None:
            return "SIGTERM was not sent: there is no process 1 yet"
        has_handler = bool(int(_process_status(process).get("SigCgt", "0"), 16) >> (signal.SIGTERM - 1) & 1)
        if not has_handler:
            return "process 1 has no handler for SIGTERM and ignores it"
        os.kill(process, signal.SIGTERM)
        return "SIGTERM was sent to process 1"

    def kill(self) -> None:
        """Kill all processes of the host that still run, and wait for them. A namespace ends with its first process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self._is_namespaced:
            kill_marked(self._marker)
        self._process.wait()
        self._ended = self._ended or time.monotonic()

    def _read(self, lines: "queue.Queue[Tuple[str, str]]") -> None:
        assert self._process.stdout is not None
        for raw in iter(self._process.stdout.readline, b""):
            lines.put((self.host, raw.decode("utf-8", "replace")))


def _prepare_loopback(plan: RehearsalPlan, host: str) -> Tuple[str, ...]:
    for channel in plan.request.channels:
        link_channel(channel.path, plan.folder.opt_ml(host) / "input" / "data" / channel.name)
    return plan.request.command


def _find_process_one(host: int) -> Optional[int]:
    """The first process of a host's namespace, whose parent is a child of the process that entered the namespaces."""
    for folder in Path("/proc").iterdir():
        status = _process_status(int(folder.name)) if folder.name.isdigit() else {}
        if status.get("NSpid", "").split()[-1:] == ["1"]:
            parent = _process_status(int(status["PPid"]))
            if parent.get("PPid") == str(host):
                return int(folder.name)
    return None


def _process_status(process: int) -> Dict[str, str]:
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def kill_marked(marker: str, *, wait: float = 5.0) -> None:
    """Kill every process whose environment has ``marker`` as a value, or as the beginning of one.

    A process group is not enough: torchrun gives each worker a session of its own.

    Args:
        marker: A path that only one rehearsal has.
        wait: Seconds to wait for the processes to end.
    """
    deadline = time.monotonic() + wait
    while True:
        found = _marked_by_proc(marker) if os.path.isdir("/proc/self") else _marked_by_ps(marker)
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not found or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _marked_by_proc(marker: str) -> List[int]:
    wanted = f"={marker}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            # The environment of a zombie is empty, so what was killed is not found again.
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def _marked_by_ps(marker: str) -> List[int]:
    # "e" adds the environment to the command; another user's is not shown.
    listed = subprocess.run(["ps", "axeww", "-o", "pid=,command="], stdout=subprocess.PIPE, check=False)
    lines = (line.split(None, 1) for line in listed.stdout.decode(errors="replace").splitlines())
    return [int(line[0]) for line in lines if f"={marker}" in line[-1] and int(line[0]) != os.getpid()]
