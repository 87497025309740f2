"""A failure server and the monitors of several ranks, in one process."""

import socket
import time

from lightning_sm._failure.connection import Address, Connection, ProcessInfo
from lightning_sm._failure.monitor import FailureMonitor
from lightning_sm._failure.reason import FailureReason
from lightning_sm._failure.server import FailureServer

REASON = FailureReason("KeyError: 'x'", 1, "algo-2")


def until(condition, seconds=10.0):
    """Wait until a function returns true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def process(rank):
    return ProcessInfo(rank, 0, f"algo-{rank + 1}", rank, 100 + rank)


class Rank:
    """A rank with its monitor, and what the monitor has called."""

    def __init__(self, cluster, rank, exit_timeout=60.0, reconnect_timeout=0.3, joined=True, joining=True):
        self.received, self.retracted, self.exits = [], [], []
        self.joined = joined
        self.monitor = FailureMonitor(
            process(rank),
            3,
            cluster.address,
            self.received.append,
            self.retracted.append,
            exit_timeout=exit_timeout,
            reconnect_timeout=reconnect_timeout,
            has_joined=lambda: self.joined,
            exit_process=self.exits.append,
        )
        self.monitor.start()
        self.monitor._started.set()
        if joining:
            self.monitor.set_joining(rank, 3)
        until(lambda: self.monitor._connection is not None)

    def die(self):
        """Close the connection without LEAVE, as the end of a killed process does."""
        self.monitor._stopped.set()
        self.monitor._connection.shutdown()


class Cluster:
    def __init__(self):
        self.ranks = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = Address("127.0.0.1", (port,), "token", 3)
        self.server = FailureServer(self.address, early_exit_delay=0.5)
        self.server.start()
        until(lambda: self.server._listener is not None)

    def start(self, count=3, **options):
        self.ranks = [Rank(self, rank, **options) for rank in range(count)]
        until(lambda: self.phases() == [rank.monitor.phase for rank in self.ranks])
        return self.ranks

    def phases(self):
        members = sorted(list(self.server._members.values()), key=lambda member: member.process.slot)
        return [member.phase for member in members]

    def connect(self):
        return Connection(socket.create_connection(("127.0.0.1", self.address.ports[0])))

    def kill_server(self):
        """Close the server without CLOSED, as the loss of its host does."""
        self.server._selector.unregister(self.server._listener)
        self.server._listener.close()
        members = list(self.server._members.values())
        for member in members:
            member.has_left = True
        for member in members:
            member.connection.shutdown()

    def end(self):
        for rank in self.ranks:
            rank.monitor.stop()
        self.server.close()


def quiet(ranks, seconds=0.5):
    time.sleep(seconds)
    return not any(rank.received or rank.exits for rank in ranks)
