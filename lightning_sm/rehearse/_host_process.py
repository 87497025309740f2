"""The processes of one host: starting them, reading their output, stopping and killing all of them.

A line of the output is a line of the job's log: which host and rank wrote it, and the topology or error in it.
"""

import contextlib
import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from lightning_sm.rehearse._outcome import USAGE_ERROR
from lightning_sm.rehearse._plan import RehearsalFolder, RehearsalPlan, write_opt_ml

__all__ = [
    "TOPOLOGY_MARKER",
    "LogLine",
    "find_error_line",
    "find_topologies",
    "find_worlds",
    "parse_lines",
    "HostProcess",
    "adopt_orphans",
    "kill_marked",
    "prepare_host",
]

#: A program shows its topology in the summary by printing this text, followed by a JSON object, anywhere in a line:
#: ``print("lightning_sm topology: " + json.dumps({"global_rank": 0, "world_size": 2}))``. Print it as one string:
#: images run Python unbuffered, and the toolkit then makes a line of each argument of ``print``.
TOPOLOGY_MARKER = "lightning_sm topology:"

# mpirun's --tag-output as the toolkit rewrites it, then as mpirun writes it, then torch's own prefix of tracebacks.
_RANKS = (
    re.compile(r"^\[\d+,mpirank:(?P<rank>\d+),algo-(?P<number>\d+)\](?:<std(?:out|err)>:)?\s?(?P<text>.*)$"),
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?(?P<text>.*)$"),
    re.compile(r"^\[rank(?P<rank>\d+)\]:(?P<text>.*)$"),
)

# Before each of the first two: with unbuffered output, a line and its end are two writes.
_TAG = re.compile(r"(?=\[\d+,(?:mpirank:\d+,algo-)?\d+\]<std(?:out|err)>:)")

# Lightning's line for each rank that joins a process group.
_MEMBER = re.compile(r"GLOBAL_RANK: \d+, MEMBER: \d+/(\d+)")

# What the toolkit writes about a failure without knowing its cause.
_TOOLKIT = re.compile(r"sagemaker-training-toolkit|^(?:ExecuteUserScriptError|ExitCode|ErrorMessage|Command) ?")
_ERROR = re.compile(r"(?i)\w*error\b|\w*exception\b|\bkilled\b|\bfatal\b|no such file|not found")


@dataclass(frozen=True)
class LogLine:
    """One line. ``host`` is where it was written, which under mpirun is not where it was read."""

    host: str
    rank: Optional[int]
    text: str

    def __str__(self) -> str:
        origin = self.host if self.rank is None else f"{self.host} rank {self.rank}"
        return f"[{origin}] {self.text}"


def parse_lines(host: str, raw: str, mpi_hosts: Sequence[str] = ()) -> Iterator[LogLine]:
    """Return the lines in a raw line of ``host``'s container: several, where mpirun joined those of several ranks.

    The toolkit names the host of a rank ``algo-N`` by counting, whatever the hosts are called; ``mpi_hosts`` are those
    that it counted.
    """
    parts = _TAG.split(raw.rstrip("\r\n"))
    for part in parts:
        if part or len(parts) == 1:
            yield _parse(host, part, mpi_hosts)


def _parse(host: str, text: str, mpi_hosts: Sequence[str]) -> LogLine:
    for pattern in _RANKS:
        match = pattern.match(text)
        if match is not None:
            found = match.groupdict()
            number = int(found.get("number") or 0)
            origin = mpi_hosts[number - 1] if 0 < number <= len(mpi_hosts) else host
            return LogLine(origin, int(found["rank"]), found["text"])
    return LogLine(host, None, text)


def find_error_line(texts: Sequence[str]) -> Optional[str]:
    """Return the log line that best explains a failure.

    It is the last usage error of a parser, whose text may go on with lines that name errors of their own, else the
    last line that names an error, else the last.
    """
    own = [text.strip() for text in texts if text.strip() and not _TOOLKIT.search(text)]
    usage = [text for text in own if USAGE_ERROR.match(text)]
    if usage:
        return usage[-1]
    return next((text for text in reversed(own) if _ERROR.search(text)), own[-1] if own else None)


def find_topologies(text: str) -> Iterator[Dict[str, Any]]:
    """Return each topology in a line. There may be several, since the toolkit sometimes joins lines."""
    for part in text.split(TOPOLOGY_MARKER)[1:]:
        try:
            value, _ = json.JSONDecoder().raw_decode(part.lstrip())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def find_worlds(text: str) -> Iterator[int]:
    """Return the size of each process group that a line tells of: Lightning's own lines, and topologies."""
    for size in _MEMBER.findall(text):
        yield int(size)
    for topology in find_topologies(text):
        if isinstance(topology.get("world_size"), int):
            yield topology["world_size"]


_PR_SET_CHILD_SUBREAPER = 36
_NAMESPACES = ("--net", "--mount", "--uts", "--ipc")


def prepare_host(plan: RehearsalPlan, folder: RehearsalFolder, host: str) -> None:
    """Write the files that the host starts with."""
    opt_ml = folder.opt_ml(host)
    write_opt_ml(plan.request, host, opt_ml, interface=plan.interface, base=plan.base(folder, host))
    if plan.isolation.is_namespaced:
        folder.rootfs(host).mkdir(parents=True)
        folder.layer(host).mkdir(parents=True)
        return
    for channel in plan.request.channels:
        target = opt_ml / "input" / "data" / channel.name
        if channel.path.is_dir():
            target.symlink_to(channel.path, target_is_directory=True)
        else:
            target.mkdir()
            (target / channel.path.name).symlink_to(channel.path)


class HostProcess:
    """A started host.

    Args:
        plan: What the host is told.
        folder: The rehearsal's folder, in which :func:`prepare_host` has written the host's files.
        host: The host's name.
        lines: Gets what the host writes, line by line, each with the host's name.
    """

    def __init__(
        self, plan: RehearsalPlan, folder: RehearsalFolder, host: str, lines: "queue.Queue[Tuple[str, str]]"
    ) -> None:
        self.host = host
        is_namespaced = plan.isolation.is_namespaced
        self._marker = None if is_namespaced else str(folder.opt_ml(host))
        self._started = time.monotonic()
        self._ended: Optional[float] = None
        environment: Dict[str, str] = dict(os.environ) if is_namespaced else plan.variables(folder, host)
        self._process = subprocess.Popen(
            _host_command(plan, folder, host),
            env=environment,
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

    def stop(self) -> str:
        """Send SIGTERM to the container's process 1 as a container engine does, and return what happened."""
        return _send_sigterm(self._process.pid, is_namespaced=self._marker is None)

    def kill(self) -> None:
        """Kill all processes of the host that still run, and wait for them. A namespace ends with its first process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._marker is not None:
            kill_marked(self._marker, below=os.getpid())
        self._process.wait()
        self._ended = self._ended or time.monotonic()
        self._reader.join(timeout=5.0)

    def _read(self, lines: "queue.Queue[Tuple[str, str]]") -> None:
        assert self._process.stdout is not None
        for raw in iter(self._process.stdout.readline, b""):
            lines.put((self.host, raw.decode("utf-8", "replace")))


def _host_command(plan: RehearsalPlan, folder: RehearsalFolder, host: str) -> Tuple[str, ...]:
    if not plan.isolation.is_namespaced:
        return plan.request.command
    inside = (sys.executable, "-m", "lightning_sm.rehearse._container", "setup", str(folder.root), host)
    return ("unshare", *_NAMESPACES, *inside)


def _send_sigterm(host: int, *, is_namespaced: bool) -> str:
    """Send SIGTERM to process 1 of a container, and return what happened.

    The kernel drops a signal for which process 1 of a namespace has no handler. A container without a process namespace
    is treated the same.

    Args:
        host: The PID of the process that was started for the host.
        is_namespaced: Whether process 1 is a child of that process, and not that process itself.
    """
    process = _find_process_one(host) if is_namespaced else host
    if process is None:
        return "SIGTERM was not sent: there is no process 1 yet"
    has_handler = _handles_sigterm(process)
    if is_namespaced or has_handler:
        os.kill(process, signal.SIGTERM)
    if has_handler:
        return "SIGTERM was sent to process 1"
    return "process 1 has no handler for SIGTERM and ignores it"


def _find_process_one(host: int) -> Optional[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            status = _process_status(int(folder.name))
            if status.get("PPid") == str(host) and status.get("NSpid", "").split()[-1:] == ["1"]:
                return int(folder.name)
    return None


def _handles_sigterm(process: int) -> bool:
    return bool(int(_process_status(process).get("SigCgt", "0"), 16) >> (signal.SIGTERM - 1) & 1)


def _process_status(process: int) -> Dict[str, str]:
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def adopt_orphans() -> None:
    """On Linux, become the parent of every orphaned descendant, so that it can be killed and waited for."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_marked(marker: str, *, below: Optional[int] = None, wait: float = 5.0) -> None:
    """Kill every process whose environment has ``marker`` as a value.

    A process group is not enough: torchrun gives each worker a session of its own.

    Args:
        marker: A path that only one rehearsal has.
        below: The process whose descendants are killed where there is no ``/proc``: one that starts hosts only.
        wait: Seconds to wait for the processes to end.
    """
    deadline = time.monotonic() + wait
    while True:
        found = _marked(marker) if os.path.isdir("/proc/self") else _descendants(below)
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if not found or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _marked(marker: str) -> List[int]:
    wanted = f"={marker}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                # The environment of a zombie is empty, so what was killed is not found again.
                if wanted in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def _descendants(parent: Optional[int]) -> List[int]:
    if parent is None:
        return []
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, check=False)
    children: Dict[int, Set[int]] = {}
    for line in listed.stdout.decode().splitlines():
        pid, ppid, state = line.split()[:3]
        if not state.startswith("Z"):
            children.setdefault(int(ppid), set()).add(int(pid))
    found: List[int] = []
    todo = [parent]
    while todo:
        below = children.get(todo.pop(), set())
        found += below
        todo += below
    return found
