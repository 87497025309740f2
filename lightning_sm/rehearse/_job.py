"""Runs a job: starts its hosts, passes on their logs, ends them, and collects what they leave."""

import contextlib
import dataclasses
import queue
import time
from pathlib import Path
from typing import Dict, List, Optional, TextIO, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.launch._log_lines import LogLine, parse_lines
from lightning_sm.rehearse._container import create_ssh_key, run_commands
from lightning_sm.rehearse._host import HostProcess
from lightning_sm.rehearse._log import find_error_line, find_topologies, find_worlds
from lightning_sm.rehearse._network import BRIDGE_COMMANDS
from lightning_sm.rehearse._outcome import EndedBy, HostOutcome, Outcome, rank_in
from lightning_sm.rehearse._plan import RehearsalPlan
from lightning_sm.rehearse._storage import collect_results, fetch_checkpoints, send_checkpoints

__all__ = ["run_job"]

_POLL_SECONDS = 0.1
# Of hosts that write faster than their lines are passed on: then a host waits, as for the agent of an instance.
_MOST_LINES = 1000
# A process that was not killed may keep a host's output open.
_REST_SECONDS = 5.0
# In these is HostOutcome.error_line.
_LAST_LINES = 200


def run_job(plan: RehearsalPlan, stream: TextIO) -> Outcome:
    """Run the job with its checkpoints, and collect its results.

    Args:
        plan: The job.
        stream: Gets the lines of its log.

    Raises:
        RehearsalError: A host or the network could not be set up.
    """
    request, folder = plan.request, plan.folder
    if plan.isolation != "loopback":
        run_commands(BRIDGE_COMMANDS, enter=plan.enter)
    if request.uses_mpirun:
        create_ssh_key(folder.keys)
    local = {host: plan.checkpoints_of(host) for host in request.hosts}
    bucket = Path(request.options.checkpoint_dir or folder.checkpoints) if request.has_checkpoints else None
    before = {host: fetch_checkpoints(bucket, local[host]) for host in local} if bucket else {}
    outcome = _Run(plan, stream).run()
    if bucket is not None:
        for host, files in before.items():
            send_checkpoints(local[host], files, bucket)
    uploads, warnings = collect_results(plan, bucket)
    if bucket is None and any(any(path.glob("*")) for path in local.values()):
        warnings += (
            f"Files in {request.checkpoint_path} are lost with the job: it has no checkpoint configuration "
            "(checkpoint_s3_uri; here --checkpoint-dir).",
        )
    return dataclasses.replace(outcome, uploads=uploads, warnings=warnings)


class _Run:
    """The hosts of one run of the job, and what was read from their logs."""

    def __init__(self, plan: RehearsalPlan, stream: TextIO) -> None:
        self._plan, self._stream, self._options = plan, stream, plan.request.options
        self._lines: queue.Queue[Tuple[str, str]] = queue.Queue(_MOST_LINES)
        self._logs: Dict[str, List[str]] = {host: [] for host in plan.request.hosts}
        self._hosts: List[HostProcess] = []
        self._is_stop_line_seen = False

    def run(self) -> Outcome:
        """Start the hosts and wait for them. None of their processes runs any more when this returns or raises."""
        request = self._plan.request
        started = time.monotonic()
        try:
            for name in request.hosts:
                self._hosts.append(HostProcess(self._plan, name, self._lines))
            try:
                ended_by = self._wait(started + self._options.timeout)
            except KeyboardInterrupt:
                ended_by = "stop"
            codes = {host.host: host.exit_code for host in self._hosts}
        finally:
            for host in self._hosts:
                host.kill()
            self._read_rest()
        for name in codes:
            if self._plan.folder.start_error(name).exists():
                reason = self._plan.folder.start_error(name).read_text(encoding="utf-8").strip()
                raise RehearsalError(f"Host {name} was not started: {reason}")
        because = {
            "exit": "another host failed",
            "timeout": "timeout",
            "stop": "stop",
            "stopped": f"SIGKILL {self._options.stop_grace:.0f} s after SIGTERM",
        }[ended_by]
        return Outcome(
            tuple(self._outcome(host, codes[host.host], because) for host in self._hosts),
            ended_by,
            round(time.monotonic() - started, 1),
            job_name=request.job_name,
            isolation=self._plan.isolation,
            distribution=request.distribution,
            sdk=request.sdk,
        )

    def _wait(self, deadline: float) -> EndedBy:
        """Wait until the job is over, and return why."""
        options = self._options
        failed_at: Optional[float] = None
        stop_at = None if options.stop_after is None else time.monotonic() + options.stop_after
        kill_at: Optional[float] = None
        while True:
            self._read_logs(_POLL_SECONDS)
            codes = [host.exit_code for host in self._hosts]
            now = time.monotonic()
            if all(code is not None for code in codes):
                return "exit" if kill_at is None else "stopped"
            if kill_at is not None:
                if now > kill_at:
                    return "stopped"
                continue
            if self._is_stop_line_seen or (stop_at is not None and now > stop_at):
                for host in self._hosts:
                    if host.exit_code is None:
                        self._log(LogLine("rehearsal", None, f"Stop: {host.host}: {host.stop()}"))
                kill_at = now + options.stop_grace
            if failed_at is None and any(code not in (None, 0) for code in codes):
                failed_at = now
            if failed_at is not None and now - failed_at > options.abort_after:
                return "exit"
            if now > deadline:
                return "timeout"

    def _read_logs(self, seconds: float) -> None:
        """Pass on what the hosts write, for about this long, and not more lines than the queue holds."""
        until = time.monotonic() + seconds
        stop_at = self._options.stop_at
        for _ in range(_MOST_LINES):
            try:
                host, raw = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            for line in parse_lines(host, raw, self._plan.request.distribution_hosts):
                self._logs[line.host].append(line.text)
                self._is_stop_line_seen |= stop_at is not None and stop_at in line.text
                self._log(line)

    def _read_rest(self) -> None:
        """Pass on what hosts that have ended wrote before."""
        until = time.monotonic() + _REST_SECONDS
        while any(host.is_read for host in self._hosts) and time.monotonic() < until:
            self._read_logs(_POLL_SECONDS)
        self._read_logs(0.0)

    def _log(self, line: LogLine) -> None:
        # The job goes on when nobody reads its log any more, or the terminal cannot show it.
        with contextlib.suppress(OSError, UnicodeError):
            print(line, file=self._stream, flush=True)

    def _outcome(self, host: HostProcess, code: Optional[int], because: str) -> HostOutcome:
        """How a host ended. ``because`` is for one without an exit code."""
        name, log = host.host, self._logs[host.host]
        failure = self._plan.folder.opt_ml(name) / "output" / "failure"
        return HostOutcome(
            host=name,
            group=self._plan.request.group_of(name).name,
            exit_code=code,
            seconds=round(host.seconds, 1),
            ended_because=because if code is None else None,
            failure=failure.read_text(encoding="utf-8", errors="replace") if failure.exists() else None,
            error_line=None if code in (None, 0) else find_error_line(log[-_LAST_LINES:]),
            topologies=tuple(sorted((each for text in log for each in find_topologies(text)), key=rank_in)),
            worlds=tuple(sorted({size for text in log for size in find_worlds(text)})),
        )
