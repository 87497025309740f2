"""While a process waits for others: for the name of the main host, and in ``init_process_group``.

Each wait logs, at an interval, for whom and for how long.
"""

import socket
import sys
import threading
import time
from types import FrameType
from typing import AbstractSet, Callable, List, Optional, Sequence

from lightning_sm._failure import RendezvousState
from lightning_sm._logging import log
from lightning_sm.errors import TopologyError

__all__ = ["LOG_INTERVAL", "RendezvousWait", "describe_wait", "end_wait", "log_wait", "wait_until_resolvable"]

#: Seconds between two lines of a wait.
LOG_INTERVAL = 30.0

_POLL_SECONDS = 2.0
_CHECK_SECONDS = 0.5
_MAX_NAMES = 8


def wait_until_resolvable(
    address: str, source: Optional[str], timeout: float, *, interval: Optional[float] = LOG_INTERVAL
) -> None:
    """Wait until the name of a host resolves. SageMaker starts hosts one by one.

    Args:
        address: The name or address.
        source: The variable or file that it was read from.
        timeout: The time to wait at most, in seconds.
        interval: Seconds between two log lines; ``None`` logs nothing.

    Raises:
        TopologyError: It did not resolve in time, or is not a valid name.
    """
    started = time.monotonic()
    next_line = started
    while True:
        try:
            socket.getaddrinfo(address, None)
            return
        except UnicodeError as error:
            # Such as "algo-1..local" or a label of more than 63 characters, which never resolves.
            raise TopologyError(
                f"The main host {address!r} (by {source}) is not a valid host name: {error}.",
                hint="Set MASTER_ADDR to a host name or an address.",
            ) from error
        except OSError as error:
            waited = time.monotonic() - started
            if waited >= timeout:
                raise TopologyError(
                    f"The main host {address!r} (by {source}) did not resolve within {waited:.0f} seconds: {error}.",
                    hint="Check whether that host has started: its log stream has its name.",
                ) from error
        if interval is not None and time.monotonic() >= next_line:
            log.warning(
                "Waiting up to %.0f s for the name of the main host %s to resolve, for %.0f s so far.",
                timeout,
                address,
                waited,
            )
            next_line += interval
        time.sleep(min(_POLL_SECONDS, interval or _POLL_SECONDS, max(0.0, timeout - waited)))


class RendezvousWait:
    """A thread that logs for whom this process waits in ``init_process_group``, until that has returned or failed.

    torch before 2.1 holds the interpreter's lock while it creates its store, and no thread runs meanwhile:
    https://github.com/pytorch/pytorch/pull/100555.

    Args:
        describe: Takes the seconds waited so far, and returns the line.
        interval: Seconds until the first line, and between two lines.
    """

    def __init__(self, describe: Callable[[float], str], interval: float = LOG_INTERVAL) -> None:
        self._describe, self._interval = describe, interval
        self._waiting_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-sm-rendezvous-wait", daemon=True)

    def start(self) -> None:
        """Start the thread. It is the calling thread that is about to initialize the process group."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, which it does not in the child of a fork."""
        return self._thread.is_alive()

    def _run(self) -> None:
        started = time.monotonic()
        last_check, next_line, has_entered = started, started + self._interval, False
        while not self._stopped.wait(min(_CHECK_SECONDS, self._interval)):
            is_inside = _is_initializing(sys._current_frames().get(self._waiting_thread))
            has_entered = has_entered or is_inside
            if not is_inside and (has_entered or _is_initialized()):
                break
            now = time.monotonic()
            if now - last_check > self._interval + _CHECK_SECONDS:
                # This thread could not run, and what it would say may be over.
                next_line = now + self._interval
            last_check = now
            if now >= next_line:
                next_line = now + self._interval
                try:
                    log.info("%s", self._describe(now - started))
                except Exception as error:  # a line less must not end anything
                    log.warning("Nothing more is logged of this wait: %s: %s", type(error).__name__, error)
                    return


# Of this process. Not held by the environment, which strategies pickle and copy.
_current: Optional[RendezvousWait] = None


def log_wait(describe: Callable[[float], str], interval: float = LOG_INTERVAL) -> None:
    """Log for whom this process waits, as :class:`RendezvousWait` does; nothing if it is a member of a group."""
    global _current
    if not _is_initialized() and (_current is None or not _current.is_alive):
        _current = RendezvousWait(describe, interval)
        _current.start()


def end_wait() -> None:
    """End the log lines of a wait, if there is one."""
    if _current is not None:
        _current.stop()


def _is_initializing(frame: Optional[FrameType]) -> bool:
    """Whether a thread is in ``init_process_group``, whose last step may wait for others after the group exists."""
    while frame is not None:
        if frame.f_code.co_name == "init_process_group":
            return True
        frame = frame.f_back
    return False


def _is_initialized() -> bool:
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def describe_wait(
    seconds: float, main: str, rank: int, world_size: int, hosts: Sequence[str], state: Optional[RendezvousState]
) -> str:
    """Return the line that says for whom a rank waits.

    >>> state = RendezvousState(joined=frozenset(range(8)), hosts=frozenset({"algo-1"}))
    >>> describe_wait(30, "algo-1:7777", 0, 16, ["algo-1", "algo-2"], state)
    'Waiting at algo-1:7777 for 8 of 16 ranks, for 30 s so far. Not started: ranks 8-15; host algo-2.'

    Args:
        seconds: How long it has waited.
        main: Address and port of global rank 0.
        rank: This rank.
        world_size: Processes in the world.
        hosts: The hosts of the world.
        state: Who has joined, which global rank 0 knows; ``None`` on other ranks and where it is unknown.
    """
    if rank != 0:
        return (
            f"Rank {rank} waits for the main host {main} and for all other ranks, for {seconds:.0f} s so far. "
            "The log of rank 0 names those that are missing."
        )
    if state is None:
        return f"Waiting at {main} for the other {world_size - 1} ranks, for {seconds:.0f} s so far."
    missing = set(range(world_size)) - state.joined
    starting = missing & state.starting
    absent = missing - starting
    if not missing:
        return (
            f"All {world_size} ranks are in the rendezvous at {main}, and init_process_group has not returned for "
            f"{seconds:.0f} s."
        )
    parts = [f"Waiting at {main} for {len(missing)} of {world_size} ranks, for {seconds:.0f} s so far."]
    if absent:
        silent = [host for host in hosts if host not in state.hosts] if state.hosts else []
        silent = silent or _hosts_of(absent, hosts, world_size)
        named = f"; host{'' if len(silent) == 1 else 's'} {_shortened(silent)}" if silent else ""
        parts.append(f"Not started: {_ranks(absent)}{named}.")
    if starting:
        parts.append(f"Started, but not in the rendezvous yet: {_ranks(starting)}.")
    return " ".join(parts)


def _hosts_of(ranks: AbstractSet[int], hosts: Sequence[str], world_size: int) -> List[str]:
    """Return the hosts of ranks, where all hosts have the same number of them."""
    size, rest = divmod(world_size, len(hosts) or 1)
    return [] if rest else [host for index, host in enumerate(hosts) if any(rank // size == index for rank in ranks)]


def _ranks(ranks: AbstractSet[int]) -> str:
    """Return ranks as text, such as ``ranks 0-3, 9``."""
    firsts = [rank for rank in sorted(ranks) if rank - 1 not in ranks]
    lasts = [rank for rank in sorted(ranks) if rank + 1 not in ranks]
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts)]
    rest = sum(last - first + 1 for first, last in list(zip(firsts, lasts))[_MAX_NAMES:])
    more = f" and {rest} more" if rest else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranges[:_MAX_NAMES])}{more}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
