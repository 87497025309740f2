import pytest

from lightning_sm import Launcher, Topology
from lightning_sm.errors import TopologyError
from tests.helpers.environ import torchrun


def test_text_is_one_line_of_values_and_sources():
    text = str(Topology.resolve(torchrun(3, 4, 1, 2, 1)))
    assert "launcher='torchrun'" in text
    assert "global_rank=3 ← RANK" in text
    assert "main_address='algo-1' ← MASTER_ADDR" in text
    assert "\n" not in text
    assert str(Topology(Launcher.LOCAL)) == "launcher='none'"


@pytest.mark.parametrize(
    "parts",
    [
        {"global_rank": 2, "world_size": 2},
        {"local_rank": 1, "local_world_size": 1},
        {"node_rank": 1, "num_nodes": 1},
        {"world_size": 0, "global_rank": 0},
        {"world_size": 2, "local_world_size": 4},
    ],
)
def test_ranks_outside_the_world_are_refused(parts):
    with pytest.raises(TopologyError, match=r"is \d+ by default, but .* HINT: These come from the launcher"):
        Topology(Launcher.TORCHRUN, **parts)
