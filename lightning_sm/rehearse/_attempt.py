"""One start of the job: all hosts, until they end, one fails, time is up, or somebody says stop."""

from __future__ import annotations

import collections
import queue
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ._container import NOT_STARTED
from ._errors import RehearsalError
from ._hosts import RunningHost, prepare_host
from ._logs import LogLine, error_line, read_lines, topologies_in
from ._outcome import Attempt, HostOutcome
from ._plan import Plan
from ._request import Limits
from ._switch import start_switch
from ._tree import Tree

__all__ = ["run_attempt"]

_TICK = 0.1

Say = Callable[[LogLine], None]


class _Play:
    """The hosts of one attempt while they run."""

    def __init__(self, plan: Plan, tree: Tree, say: Say) -> None:
        self._plan, self._tree, self._say = plan, tree, say
        self._lines: queue.Queue[Tuple[str, str]] = queue.Queue()
        self._topologies: Dict[str, List[Tuple[int, Dict[str, Any]]]] = {host: [] for host in plan.request.hosts}
        # The last lines of each host, of which one may tell what its failure reason does not.
        self._texts: Dict[str, Deque[str]] = {host: collections.deque(maxlen=200) for host in plan.request.hosts}
        self.is_stop_due = False
        self._switch = start_switch(plan.request.hosts, plan.request.link)
        self.hosts = [RunningHost(plan, tree, host, self._lines) for host in plan.request.hosts]

    def listen(self, seconds: float) -> None:
        """Pass on what the hosts write, for at most this long."""
        until = time.monotonic() + seconds
        while True:
            try:
                host, raw = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            for line in read_lines(host, raw, self._plan.request.distribution_hosts):
                for topology in topologies_in(line.text):
                    rank = topology.get("global_rank", line.rank)
                    self._topologies[line.host].append((rank if isinstance(rank, int) else -1, topology))
                self._texts[line.host].append(line.text)
                stop_at = self._plan.request.limits.stop_at
                self.is_stop_due |= stop_at is not None and stop_at in line.text
                self._say(line)

    def stop(self) -> None:
        """Send SIGTERM to every container that still runs."""
        for host in self.hosts:
            if host.exit_code is None:
                self._say(LogLine("rehearsal", None, f"Stop: {host.host}: {host.stop()}"))

    def end(self) -> None:
        """End what is left, and hear the last of it."""
        for host in self.hosts:
            host.end()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        self.listen(0.0)

    def outcome(self, host: RunningHost, code: Optional[int], because: Optional[str]) -> HostOutcome:
        failure = self._tree.ml(host.host) / "output" / "failure"
        text = failure.read_text(encoding="utf-8", errors="replace") if failure.exists() else None
        return HostOutcome(
            host=host.host,
            group=self._plan.request.group_of(host.host).name,
            exit_code=code,
            seconds=round(host.seconds, 1),
            ended_because=because,
            failure=text,
            error_line=None if code in (None, 0) else error_line(self._texts[host.host]),
            topologies=tuple(sorted(self._topologies[host.host], key=lambda pair: pair[0])),
        )


def run_attempt(
    plan: Plan, tree: Tree, say: Say, stop: threading.Event, *, deadline: float, interrupt_at: Optional[float]
) -> Attempt:
    """Start the hosts and wait for them. Nothing of them runs any more when this returns or raises.

    Raises:
        RehearsalError: A host could not be set up; the message has the host's own words.
    """
    for host in plan.request.hosts:
        prepare_host(plan, tree, host)
    started = time.monotonic()
    play = _Play(plan, tree, say)
    try:
        ended_by = _wait(play, plan.request.limits, stop, deadline, interrupt_at)
        codes = {host.host: host.exit_code for host in play.hosts}
    finally:
        play.end()
    for name, code in codes.items():
        if code == NOT_STARTED and tree.refusal(name).exists():
            raise RehearsalError(f"Host {name} was not started: {tree.refusal(name).read_text(encoding='utf-8')}")
    because = {
        "exit": "another host failed",
        "timeout": "timeout",
        "interruption": "spot interruption",
        "stop": "stop",
        "stopped": f"SIGKILL {plan.request.limits.stop_grace:.0f} s after SIGTERM",
    }
    hosts = tuple(
        play.outcome(host, codes[host.host], because[ended_by] if codes[host.host] is None else None)
        for host in play.hosts
    )
    return Attempt(hosts, ended_by, round(time.monotonic() - started, 1))


def _wait(play: _Play, limits: Limits, stop: threading.Event, deadline: float, interrupt_at: Optional[float]) -> str:
    """Why the attempt is over: see :class:`Attempt`."""
    failed_at: Optional[float] = None
    stop_after = None if limits.stop_after is None else time.monotonic() + limits.stop_after
    kill_at: Optional[float] = None
    while True:
        play.listen(_TICK)
        codes = [host.exit_code for host in play.hosts]
        now = time.monotonic()
        if all(code is not None for code in codes):
            return "exit" if kill_at is None else "stopped"
        if stop.is_set():
            return "stop"
        if kill_at is not None:
            if now > kill_at:
                return "stopped"
            continue
        if play.is_stop_due or (stop_after is not None and now > stop_after):
            play.stop()
            kill_at = now + limits.stop_grace
        if failed_at is None and any(code not in (None, 0) for code in codes):
            failed_at = now
        if failed_at is not None and now - failed_at > limits.abort_after:
            return "exit"
        if now > deadline:
            return "timeout"
        if interrupt_at is not None and now > interrupt_at:
            return "interruption"
