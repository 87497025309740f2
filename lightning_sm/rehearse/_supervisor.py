"""The process that starts and ends all hosts of a rehearsal. In namespaces it is process 1, and they all end with it.

Run as ``python -m lightning_sm.rehearse._supervisor FOLDER``. Its standard input is a pipe from the process that
started it: a byte means stop, end-of-file that that process has ended.
"""

import collections
import os
import queue
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Sequence, Set, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._container import NOT_STARTED, create_ssh_key, run_commands
from lightning_sm.rehearse._host_process import (
    HostProcess,
    LogLine,
    adopt_orphans,
    find_error_line,
    find_topologies,
    find_worlds,
    kill_marked,
    parse_lines,
    prepare_host,
)
from lightning_sm.rehearse._network import bridge_commands, removal_commands
from lightning_sm.rehearse._outcome import Attempt, EndedBy, HostOutcome, Outcome
from lightning_sm.rehearse._plan import RehearsalFolder, RehearsalPlan, checkpoint_path
from lightning_sm.rehearse._request import Limits
from lightning_sm.rehearse._storage import collect_results, fetch_checkpoints, send_checkpoints

__all__ = ["main", "run_job"]

_POLL_SECONDS = 0.1


def run_job(plan: RehearsalPlan, folder: RehearsalFolder, stop: threading.Event) -> Outcome:
    """Run the job, once more after a spot interruption, and collect its results.

    Args:
        plan: The job.
        folder: The rehearsal's folder.
        stop: When it is set, the job is ended.

    Raises:
        RehearsalError: A host or the network could not be set up.
    """
    if plan.isolation.is_namespaced:
        run_commands(bridge_commands())
    if plan.request.distribution.uses_mpirun:
        create_ssh_key(folder.keys)
    limits = plan.request.limits
    started = time.monotonic()
    bucket = _checkpoint_bucket(plan, folder)
    interrupt_at = None if limits.interrupt_after is None else started + limits.interrupt_after
    log = _LogWriter(sys.stderr.fileno() if plan.log_to_stderr else sys.stdout.fileno())
    attempts: List[Attempt] = []
    while True:
        local = {host: _checkpoint_folder(plan, folder, host) for host in plan.request.hosts}
        before = {host: fetch_checkpoints(bucket, local[host]) for host in local} if bucket else {}
        attempt = _run_attempt(plan, folder, log, stop, deadline=started + limits.timeout, interrupt_at=interrupt_at)
        attempts.append(attempt)
        if bucket is not None:
            for host, files in before.items():
                send_checkpoints(local[host], files, bucket)
        if attempt.ended_by is not EndedBy.INTERRUPTION:
            break
        log.write(LogLine("rehearsal", None, "Spot interruption: all hosts were ended; the job starts again."))
        if plan.isolation.is_namespaced:
            run_commands(removal_commands(plan.request.hosts), check=False)
        shutil.rmtree(folder.hosts)
        interrupt_at = None
    uploads, warnings = collect_results(plan.request, folder, bucket)
    return Outcome(
        attempts=tuple(attempts),
        uploads=uploads,
        warnings=(*warnings, *_lost_checkpoints(plan, folder, bucket)),
        job_name=plan.request.job_name,
        isolation=plan.isolation,
        distribution=plan.request.distribution,
        sdk=plan.request.sdk,
    )


def _checkpoint_bucket(plan: RehearsalPlan, folder: RehearsalFolder) -> Optional[Path]:
    """The folder in place of the checkpoints' S3 prefix, if the job has one."""
    if not plan.request.has_checkpoints:
        return None
    bucket = plan.request.checkpoint_dir or folder.checkpoints
    bucket.mkdir(parents=True, exist_ok=True)
    return bucket


def _checkpoint_folder(plan: RehearsalPlan, folder: RehearsalFolder, host: str) -> Path:
    return Path(checkpoint_path(plan.request, str(folder.opt_ml(host))))


def _lost_checkpoints(plan: RehearsalPlan, folder: RehearsalFolder, bucket: Optional[Path]) -> Tuple[str, ...]:
    if bucket is None and any(any(_checkpoint_folder(plan, folder, host).glob("*")) for host in plan.request.hosts):
        return (
            f"Files in {plan.request.checkpoint_path} are lost with the job: it has no checkpoint configuration "
            "(checkpoint_s3_uri; here --checkpoint-dir).",
        )
    return ()


class _LogWriter:
    """Writes whole lines to a file descriptor, and nothing more once its reader is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, line: LogLine) -> None:
        rest = f"{line}\n".encode()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass


def _run_attempt(
    plan: RehearsalPlan,
    folder: RehearsalFolder,
    log: _LogWriter,
    stop: threading.Event,
    *,
    deadline: float,
    interrupt_at: Optional[float],
) -> Attempt:
    """Start the hosts and wait for them. None of their processes runs any more when this returns or raises."""
    for host in plan.request.hosts:
        prepare_host(plan, folder, host)
    started = time.monotonic()
    hosts = _Hosts(plan, folder, log)
    try:
        ended_by = _wait(hosts, plan.request.limits, stop, deadline, interrupt_at)
        codes = hosts.exit_codes()
    finally:
        hosts.kill()
    for name, code in codes.items():
        if code == NOT_STARTED and folder.start_error(name).exists():
            raise RehearsalError(f"Host {name} was not started: {folder.start_error(name).read_text(encoding='utf-8')}")
    because = {
        EndedBy.EXIT: "another host failed",
        EndedBy.TIMEOUT: "timeout",
        EndedBy.INTERRUPTION: "spot interruption",
        EndedBy.STOP: "stop",
        EndedBy.STOPPED: f"SIGKILL {plan.request.limits.stop_grace:.0f} s after SIGTERM",
    }[ended_by]
    return Attempt(hosts.outcomes(codes, because), ended_by, round(time.monotonic() - started, 1))


class _Hosts:
    """The running hosts of one attempt, and what was read from their logs."""

    def __init__(self, plan: RehearsalPlan, folder: RehearsalFolder, log: _LogWriter) -> None:
        self._request, self._folder, self._log = plan.request, folder, log
        self._lines: queue.Queue[Tuple[str, str]] = queue.Queue()
        self._topologies: Dict[str, List[Tuple[int, Dict[str, Any]]]] = {host: [] for host in self._request.hosts}
        self._worlds: Dict[str, Set[int]] = {host: set() for host in self._request.hosts}
        # The last lines of each host, for HostOutcome.error_line.
        self._texts: Dict[str, Deque[str]] = {host: collections.deque(maxlen=200) for host in self._request.hosts}
        self.is_stop_line_seen = False
        self._hosts = [HostProcess(plan, folder, host, self._lines) for host in self._request.hosts]

    def exit_codes(self) -> Dict[str, Optional[int]]:
        """The exit code of each host, ``None`` while it runs."""
        return {host.host: host.exit_code for host in self._hosts}

    def read_logs(self, seconds: float) -> None:
        """Pass on what the hosts write, for at most this long."""
        until = time.monotonic() + seconds
        while True:
            try:
                host, raw = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            for line in parse_lines(host, raw, self._request.distribution_hosts):
                for topology in find_topologies(line.text):
                    rank = topology.get("global_rank", line.rank)
                    self._topologies[line.host].append((rank if isinstance(rank, int) else -1, topology))
                self._worlds[line.host].update(find_worlds(line.text))
                self._texts[line.host].append(line.text)
                stop_at = self._request.limits.stop_at
                self.is_stop_line_seen |= stop_at is not None and stop_at in line.text
                self._log.write(line)

    def stop(self) -> None:
        """Send SIGTERM to every container that still runs."""
        for host in self._hosts:
            if host.exit_code is None:
                self._log.write(LogLine("rehearsal", None, f"Stop: {host.host}: {host.stop()}"))

    def kill(self) -> None:
        """Kill what still runs, and read the rest of the logs."""
        for host in self._hosts:
            host.kill()
        self.read_logs(0.0)

    def outcomes(self, codes: Dict[str, Optional[int]], because: str) -> Tuple[HostOutcome, ...]:
        """How each host ended. ``because`` is for those without an exit code."""
        found = []
        for host in self._hosts:
            code, name = codes[host.host], host.host
            failure = self._folder.opt_ml(name) / "output" / "failure"
            found.append(
                HostOutcome(
                    host=name,
                    group=self._request.group_of(name).name,
                    exit_code=code,
                    seconds=round(host.seconds, 1),
                    ended_because=because if code is None else None,
                    failure=failure.read_text(encoding="utf-8", errors="replace") if failure.exists() else None,
                    error_line=None if code in (None, 0) else find_error_line(self._texts[name]),
                    worlds=tuple(sorted(self._worlds[name])),
                    topologies=tuple(sorted(self._topologies[name], key=lambda pair: pair[0])),
                )
            )
        return tuple(found)


def _wait(
    hosts: _Hosts, limits: Limits, stop: threading.Event, deadline: float, interrupt_at: Optional[float]
) -> EndedBy:
    """Wait until the attempt is over, and return why."""
    failed_at: Optional[float] = None
    stop_after = None if limits.stop_after is None else time.monotonic() + limits.stop_after
    kill_at: Optional[float] = None
    while True:
        hosts.read_logs(_POLL_SECONDS)
        codes = hosts.exit_codes().values()
        now = time.monotonic()
        if all(code is not None for code in codes):
            return EndedBy.EXIT if kill_at is None else EndedBy.STOPPED
        if stop.is_set():
            return EndedBy.STOP
        if kill_at is not None:
            if now > kill_at:
                return EndedBy.STOPPED
            continue
        if hosts.is_stop_line_seen or (stop_after is not None and now > stop_after):
            hosts.stop()
            kill_at = now + limits.stop_grace
        if failed_at is None and any(code not in (None, 0) for code in codes):
            failed_at = now
        if failed_at is not None and now - failed_at > limits.abort_after:
            return EndedBy.EXIT
        if now > deadline:
            return EndedBy.TIMEOUT
        if interrupt_at is not None and now > interrupt_at:
            return EndedBy.INTERRUPTION


def _watch_stdin(stop: threading.Event, orphaned: threading.Event) -> None:
    while os.read(0, 1):
        stop.set()
    orphaned.set()
    stop.set()


def main(argv: Sequence[str]) -> int:
    """Run the rehearsal in the given folder, and leave the outcome, or the error, there."""
    folder = RehearsalFolder(Path(argv[0]))
    plan: RehearsalPlan = folder.read("plan")
    stop, orphaned = threading.Event(), threading.Event()
    adopt_orphans()
    threading.Thread(target=_watch_stdin, args=(stop, orphaned), daemon=True).start()
    result: Dict[str, object] = {}
    try:
        result["outcome"] = run_job(plan, folder, stop)
    except (RehearsalError, OSError) as error:
        result["error"] = error if isinstance(error, RehearsalError) else RehearsalError(str(error))
    kill_marked(str(folder.root), below=os.getpid())
    if orphaned.is_set():
        # The process that started this one has ended, so nobody else removes the folder.
        folder.remove()
    else:
        folder.write("result", result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
