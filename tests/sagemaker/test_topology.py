import pytest

from lightning_sm import Launcher, Topology
from lightning_sm.errors import TopologyError


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
