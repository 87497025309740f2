"""What monitors of several ranks do with one failure server."""

import os
import socket
import threading
import time

import pytest

from lightning_sm._failure.connection import (
    Address,
    MessageKind,
    ProcessInfo,
    early_exit_reason,
    loss_reason,
)
from lightning_sm._failure.monitor import FailureMonitor
from lightning_sm._failure.reason import FailureReason
from tests.failure.ranks import REASON, Rank, process, quiet, until


def test_publish_returns_after_every_rank_has_received_the_failure(cluster):
    ranks = cluster.start()
    ranks[1].monitor.publish(REASON)
    assert ranks[0].received == ranks[2].received == [REASON]
    assert ranks[1].received == []
    ranks[2].monitor.publish(FailureReason("RuntimeError: Connection closed by peer", 2, "algo-3"))
    assert ranks[0].received == [REASON]


def test_the_second_of_two_failing_ranks_receives_the_first_failure(cluster):
    ranks = cluster.start()
    ranks[1].monitor.publish(REASON)
    assert ranks[2].monitor.wait_for_failure(2) == REASON


def test_a_rank_that_connects_late_receives_the_failure(cluster):
    second = cluster.start(2)[1]
    second.monitor.publish(REASON)
    cluster.ranks.append(Rank(cluster, 2))
    until(lambda: cluster.ranks[2].received == [REASON])


def test_before_the_ranks_have_joined_a_failure_waits_for_hosts_that_start_later(cluster):
    ranks = cluster.start(2, joined=False, joining=False)
    waiting = threading.Thread(target=ranks[1].monitor.publish, args=(REASON,))
    waiting.start()
    until(lambda: ranks[0].received == [REASON])
    waiting.join(0.3)
    assert waiting.is_alive()
    cluster.ranks.append(Rank(cluster, 2, joined=False, joining=False))
    until(lambda: cluster.ranks[2].received == [REASON])
    waiting.join(2)
    assert not waiting.is_alive()


def test_a_killed_process_is_reported_to_ranks_that_wait_to_join(cluster):
    ranks = cluster.start(joined=False, joining=False)
    ranks[1].die()
    assert quiet(ranks, 1.2)
    ranks[2].monitor.set_joining(2, 3)
    until(lambda: ranks[0].received == ranks[2].received == [loss_reason(process(1))])


def test_an_early_exit_is_reported_to_ranks_that_wait_to_join(cluster):
    ranks = cluster.start(joined=False)
    ranks[1].monitor.stop()
    until(lambda: ranks[0].received == ranks[2].received == [early_exit_reason(process(1))])


def test_a_stop_of_all_before_they_joined_is_no_failure(cluster):
    # SIGTERM ends them one after the other.
    ranks = cluster.start(joined=False)
    for rank in ranks:
        rank.die()
        time.sleep(0.1)
    assert quiet(ranks, 1.0)


def test_a_process_lost_while_others_train_counts_as_joined(cluster):
    ranks = cluster.start(joined=False)
    ranks[0].joined = True
    until(lambda: cluster.phases()[0] == "training")
    ranks[1].die()
    until(lambda: ranks[2].received == [loss_reason(process(1))], 0.5)


def test_the_exit_of_a_program_that_a_rank_started_is_not_reported(cluster):
    ranks = cluster.start(joined=False, joining=False)
    other = cluster.connect()
    other.send(MessageKind.HELLO, token="token", node_rank=1, local_rank=0, pid=7, phase="starting")
    until(lambda: len(cluster.server._members) == 4)
    other.close()
    ranks[0].monitor.set_joining(0, 3)
    assert quiet(ranks, 1.2)


def test_a_rank_that_is_blocked_after_the_timeout_exits(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[1].monitor.publish(REASON)
    until(lambda: ranks[0].exits == [1])
    until(lambda: ranks[2].exits == [1])
    assert ranks[1].exits == []


def test_a_rank_that_waits_to_join_exits(cluster):
    ranks = cluster.start(exit_timeout=0.1, joined=False)
    ranks[1].monitor.publish(REASON)
    until(lambda: ranks[0].exits == ranks[2].exits == [1])


def test_a_rank_that_is_not_training_receives_the_failure_and_does_not_exit(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[0].monitor.set_training(False)
    ranks[1].monitor.publish(REASON)
    until(lambda: ranks[2].exits == [1])
    assert ranks[0].received == [REASON]
    assert ranks[0].exits == []
    # It exits once it trains again.
    ranks[0].monitor.set_training(True)
    until(lambda: ranks[0].exits == [1])


def test_a_program_that_has_caught_the_error_of_its_fit_goes_on(cluster):
    first, second, _ = cluster.start(exit_timeout=0.1)
    first.monitor.set_training(True, is_failing=True)
    second.monitor.publish(REASON)
    assert first.received == [REASON]
    time.sleep(1.5)
    assert first.exits == []
    # It is blocked if it has not left the trainer.
    waiting = {"__name__": "torch.distributed", "until": until, "exits": first.exits}
    exec("def barrier():\n    until(lambda: exits)", waiting)
    waiting["barrier"]()


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_reported_at_once(cluster, killed):
    ranks = cluster.start()
    ranks[killed].die()
    rest = [rank for rank in ranks if rank is not ranks[killed]]
    until(lambda: all(rank.received for rank in rest), 1.0)
    host = f"algo-{killed + 1}"
    assert [rank.received for rank in rest] == [[loss_reason(process(killed))]] * 2
    assert str(rest[0].received[0]).startswith(
        f"Rank {killed} on {host} was killed: it exited without an exception (SIG"
    )


def test_a_rank_that_has_left_is_not_reported(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[1].monitor.stop()
    assert quiet(ranks)


def test_the_loss_of_an_idle_rank_is_not_reported(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[1].monitor.set_training(False)
    time.sleep(0.1)
    ranks[1].die()
    assert quiet(ranks)


def test_rank_zero_may_exit_first(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[0].monitor.stop()
    cluster.server.close()
    assert quiet(ranks, 1.0)


def test_the_loss_of_an_idle_rank_zero_is_not_reported(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    ranks[0].monitor.set_training(False)
    until(lambda: ranks[1].monitor._main_phase == ranks[2].monitor._main_phase == "idle")
    cluster.kill_server()
    assert quiet(ranks[1:], 1.0)


def test_the_loss_of_the_host_of_rank_zero_is_reported(cluster):
    ranks = cluster.start(exit_timeout=0.1)
    cluster.kill_server()
    for rank in ranks[1:]:
        until(lambda rank=rank: rank.received == [loss_reason(ProcessInfo(0, 0, "127.0.0.1", 0))])
        until(lambda rank=rank: rank.exits == [1])


def test_a_closing_server_reports_the_last_loss(cluster):
    ranks = cluster.start()
    ranks[0].die()
    cluster.server.close()
    assert ranks[1].received == ranks[2].received == [loss_reason(process(0))]


def test_the_loss_of_a_rank_that_reconnects_is_retracted(cluster):
    ranks = cluster.start(exit_timeout=1)
    ranks[1].monitor._connection.shutdown()
    until(lambda: ranks[0].retracted == [loss_reason(process(1))])
    until(lambda: ranks[2].retracted == [loss_reason(process(1))])
    assert ranks[0].monitor.first_failure is None
    time.sleep(1.3)
    assert not any(rank.exits for rank in ranks)
    # And it is one of them again.
    ranks[1].monitor.publish(REASON)
    assert ranks[0].received[-1] == REASON


def test_a_failure_of_a_rank_that_has_not_connected_yet(cluster):
    (first,) = cluster.start(1)
    late = FailureMonitor(process(1), 2, cluster.address, print, print, exit_process=print)
    late.start()
    late.publish(REASON)
    late.stop()
    assert first.received == [REASON]


def test_a_server_that_closed_before_this_rank_connected(cluster):
    cluster.server.close()
    received = []
    monitor = FailureMonitor(
        process(1),
        2,
        cluster.address,
        received.append,
        received.append,
        reconnect_timeout=0.1,
        exit_process=received.append,
    )
    monitor.start()
    time.sleep(0.6)
    monitor.stop()
    assert received == []


def test_a_monitor_ignores_other_servers():
    with socket.create_server(("127.0.0.1", 0)) as other:
        received = []
        address = Address("127.0.0.1", (other.getsockname()[1],), "token", 2)
        monitor = FailureMonitor(process(1), 2, address, received.append, received.append, exit_process=received.append)
        monitor.start()
        monitor._started.set()
        connection, _ = other.accept()
        connection.sendall(b'{"kind": "failed", "reason": {"cause": "forged"}}\n')
        time.sleep(0.3)
        assert monitor._connection is None
        monitor.stop()
        connection.close()
    assert received == []


def test_a_forks_child_keeps_no_connection(cluster):
    ranks = cluster.start(2)
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    ranks[1].die()
    until(lambda: ranks[0].received, 1.0)
    os.kill(child, 9)
    os.waitpid(child, 0)
