"""The port at which workers meet that torchrun has started again; ``tests/sharded/test_elastic.py`` has real ones."""

import pytest

from lightning_sm._distributed.restarted import agree_on_port
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from tests.helpers.environ import torchrun
from tests.projects.container import log_lines

AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def topology_of(rank, port, nodes=1):
    variables = torchrun(rank, 2, rank % (2 // nodes), 2 // nodes, rank if nodes == 2 else 0, nodes, MASTER_PORT=port)
    return Topology.resolve(variables, TrainingJob())


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
