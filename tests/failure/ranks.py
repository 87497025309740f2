"""Several ranks in one process, each with a guard process of its own."""

import os
import signal
import socket
import time
from dataclasses import replace

from lightning_sm._failure.address import Address
from lightning_sm._failure.messages import Delays, GuardSettings, ProcessInfo
from lightning_sm._failure.monitor import FailureMonitor
from tests.helpers.processes import free_port, until

REASON = "KeyError: 'x' (rank 1 on algo-2)"


class Rank:
    """A rank with its monitor, its failure file, and the codes with which the monitor would have ended it."""

    def __init__(self, cluster, rank, *, joined=True, joining=True, exit_timeout=60.0):
        self.exits, self.joined = [], joined
        self._file = cluster.folder / f"failure-{rank}"
        process = ProcessInfo(rank, 0, f"algo-{rank + 1}", rank, 100 + rank)
        self.monitor = FailureMonitor(
            GuardSettings(process, cluster.address, str(self._file), rank == 0, Delays(1.0, 0.5, 1.0)),
            exit_timeout=exit_timeout,
            has_joined=lambda: self.joined,
            exit_process=self.exits.append,
        )
        self.monitor.start()
        if joining:
            self.monitor.set_joining(rank)

    @property
    def reason(self):
        """What the failure file of its host says."""
        return self._file.read_text() if self._file.exists() else None

    def sees(self, joined=(), starting=()):
        state = self.monitor.ask_who_has_joined(1, timeout=0.5)
        return state is not None and (set(state.joined), set(state.starting)) == (set(joined), set(starting))

    def die(self):
        """End without a word, as a killed process does."""
        self.monitor._stopped.set()
        self.monitor._guard.connection.shutdown(socket.SHUT_RDWR)

    def kill_guard(self):
        os.kill(self.monitor._guard._process.pid, signal.SIGKILL)

    def lose_host(self):
        """End with the guard, as the processes of a host do that is gone."""
        self.monitor._stopped.set()
        self.kill_guard()


class Cluster:
    def __init__(self, folder):
        self.folder, self.ranks = folder, []
        self.address = Address("127.0.0.1", (free_port(), free_port(), free_port()), "token", 3)

    def start(self, count=3, num_nodes=None, **options):
        """Start ranks, and wait until the server knows them."""
        self.address = replace(self.address, num_nodes=num_nodes or count)
        self.ranks = [Rank(self, rank, **options) for rank in range(count)]
        is_joined = options.get("joined", True) or options.get("joining", True)
        ranks = range(count)
        until(lambda: self.ranks[0].sees(*((ranks, ()) if is_joined else ((), ranks))))
        return self.ranks

    def end(self):
        for rank in self.ranks:
            rank.monitor.stop()
        assert not any(rank.monitor._thread.is_alive() for rank in self.ranks)
        for rank in self.ranks:
            rank.monitor._guard._process.wait(20)


def quiet(ranks, seconds=1.5):
    time.sleep(seconds)
    return not any(rank.reason or rank.exits or rank.monitor.first_failure for rank in ranks)
