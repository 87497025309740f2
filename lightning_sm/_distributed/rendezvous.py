"""While a process waits for others: for the name of the main host, and in ``init_process_group``.

Each wait logs, at an interval, for whom and for how long.
"""

import socket
import threading
import time
from typing import AbstractSet, Callable, Optional, Sequence

from lightning_sm._distributed.summary import shortened
from lightning_sm._failure import RendezvousState, is_group_initialized
from lightning_sm._logging import log
from lightning_sm.errors import TopologyError

__all__ = ["LOG_INTERVAL", "describe_wait", "end_wait", "log_wait", "wait_until_resolvable"]

#: Seconds between two lines of a wait.
LOG_INTERVAL = 30.0

_POLL_SECONDS = 2.0
_MAX_RANGES = 8


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
        except (OSError, UnicodeError) as error:
            waited = time.monotonic() - started
            # UnicodeError: a name that never resolves, such as "algo-1..local".
            if waited >= timeout or isinstance(error, UnicodeError):
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


# Of this process. Not held by the environment, which strategies pickle and copy.
_thread: Optional[threading.Thread] = None
_ended = threading.Event()


def log_wait(describe: Callable[[float], str], interval: float = LOG_INTERVAL) -> None:
    """Log for whom this process waits, in a thread, until it is a member of a process group or :func:`end_wait`.

    torch before 2.1 holds the interpreter's lock while it creates its store, and no thread runs meanwhile:
    https://github.com/pytorch/pytorch/pull/100555.

    Args:
        describe: Takes the seconds waited so far, and returns the line.
        interval: Seconds until the first line, and between two lines.
    """
    global _thread
    # In the child of a fork the thread is there and does not run.
    if is_group_initialized() or (_thread is not None and _thread.is_alive()):
        return
    started = time.monotonic()

    def run() -> None:
        while not _ended.wait(interval) and not is_group_initialized():
            try:
                log.info("%s", describe(time.monotonic() - started))
            except Exception as error:  # a line less must not end anything
                log.warning("Nothing more is logged of this wait: %s: %s", type(error).__name__, error)
                return

    _ended.clear()
    _thread = threading.Thread(target=run, name="lightning-sm-rendezvous-wait", daemon=True)
    _thread.start()


def end_wait() -> None:
    """End the log lines of a wait, if there is one."""
    _ended.set()


def describe_wait(
    seconds: float, main: str, rank: int, world_size: int, hosts: Sequence[str], state: Optional[RendezvousState]
) -> str:
    """Return the line that says for whom a rank waits.

    >>> state = RendezvousState(joined=range(8), hosts=["algo-1"])
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
    missing = set(range(world_size)).difference(state.joined)
    starting = missing.intersection(state.starting)
    absent = missing - starting
    if not missing:
        return (
            f"All {world_size} ranks are in the rendezvous at {main}, and init_process_group has not returned for "
            f"{seconds:.0f} s."
        )
    parts = [f"Waiting at {main} for {len(missing)} of {world_size} ranks, for {seconds:.0f} s so far."]
    if absent:
        silent = [host for host in hosts if host not in state.hosts] if state.hosts else []
        named = f"; host{'' if len(silent) == 1 else 's'} {shortened(silent)}" if silent else ""
        parts.append(f"Not started: {_ranks(absent)}{named}.")
    if starting:
        parts.append(f"Started, but not in the rendezvous yet: {_ranks(starting)}.")
    return " ".join(parts)


def _ranks(ranks: AbstractSet[int]) -> str:
    """Return ranks as text, such as ``ranks 0-3, 9``."""
    firsts = [rank for rank in sorted(ranks) if rank - 1 not in ranks]
    lasts = [rank for rank in sorted(ranks) if rank + 1 not in ranks]
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts)]
    rest = sum(last - first + 1 for first, last in list(zip(firsts, lasts))[_MAX_RANGES:])
    more = f" and {rest} more" if rest else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranges[:_MAX_RANGES])}{more}"
