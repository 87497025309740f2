"""The port at which workers meet that torchrun has started again; ``tests/sharded/test_elastic.py`` has real ones."""

import pytest

from lightning_sm._distributed.restarted import agree_on_port
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from tests.helpers.environ import torchrun

AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
STARTED = "torchrun has started the workers again: restart 1."
HINT = "HINT: Start torchrun with --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."


@pytest.mark.parametrize(
    ("nodes", "variables", "ends"),
    [
        (1, {}, []),
        (1, {**AGAIN, "TORCHELASTIC_RESTART_COUNT": "0"}, []),
        # A store of its own.
        (1, {**AGAIN, "TORCHELASTIC_USE_AGENT_STORE": "False"}, [STARTED]),
        # Hosts count their restarts each.
        (2, AGAIN, [STARTED, HINT]),
    ],
)
def test_those_that_need_no_port_and_those_that_cannot_agree_on_one(in_environ, lines, nodes, variables, ends):
    in_environ(variables)
    started = torchrun(0, 2, 0, 2 // nodes, 0, nodes, MASTER_PORT=7777)
    assert agree_on_port(Topology.resolve(started, TrainingJob()), "127.0.0.1") is None
    assert len(lines) == len(ends)
    assert all(line.endswith(end) for line, end in zip(lines, ends))
