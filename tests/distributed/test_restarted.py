"""The port at which workers meet that torchrun has started again; ``tests/sharded/test_elastic.py`` has real ones."""

import os
import threading

import pytest

from lightning_sm._distributed.restarted import agree_on_port
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from tests.helpers.environ import torchrun
from tests.helpers.processes import free_port
from tests.projects.container import log_lines

AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def topology_of(rank, port, nodes=1):
    variables = torchrun(rank, 2, rank % (2 // nodes), 2 // nodes, rank if nodes == 2 else 0, nodes, MASTER_PORT=port)
    return Topology.resolve(variables, TrainingJob())


def test_all_ranks_of_a_host_find_the_same_new_port(in_environ):
    import torch.distributed as dist

    in_environ(AGAIN)
    port = free_port()
    # What torchrun's agent keeps while it starts its workers again.
    kept = vars(dist)["TCPStore"]("127.0.0.1", port, None, True)
    found = {}

    def agree(rank):
        found[rank] = agree_on_port(topology_of(rank, port), "127.0.0.1")

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1]
    assert found[0] not in (None, port)
    assert kept.get("lightning_sm/restart_1/port") == str(found[0]).encode()
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    "variables", [{}, {**AGAIN, "TORCHELASTIC_RESTART_COUNT": "0"}, {**AGAIN, "TORCHELASTIC_USE_AGENT_STORE": "False"}]
)
def test_a_first_attempt_and_a_store_of_its_own_need_none(in_environ, variables):
    in_environ(variables)
    assert agree_on_port(topology_of(0, 7777), "127.0.0.1") is None


def test_hosts_count_their_restarts_each(in_environ):
    in_environ(AGAIN)
    with log_lines() as lines:
        assert agree_on_port(topology_of(0, 7777, nodes=2), "127.0.0.1") is None
    assert lines[0] == "torchrun has started the workers again: restart 1."
    assert "HINT: Start torchrun with --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1." in lines[1]
