"""Every launcher with SageMaker's real parts: our ranks are torch's and the launcher's, our weights are Lightning's."""

import pytest

from .launches import LAUNCHES
from .running import needs_launch, rehearse_launch

pytestmark = pytest.mark.full

# What they were told is in the recordings. The toolkits start them as others of the table, with fewer processes, more
# hosts or groups; tests/processes has the processes that Lightning starts, and test_captured_v3.py v3's torchrun.
_RECORDED_ONLY = {
    "none_two_hosts",
    "none_parameter_server",
    "none_two_groups",
    "none_two_devices",
    "torchrun_two_hosts",
    "pytorchddp_two_hosts",
    "v3_none_two_devices",
    "v3_torchrun_two_hosts",
}
_REHEARSED = [name for name in LAUNCHES if name not in _RECORDED_ONLY]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_launch(name)) for name in _REHEARSED])
def test_ranks_results_and_weights_of_a_launch(name, tmp_path, plain):
    launch, rehearsed = LAUNCHES[name], rehearse_launch(name, tmp_path)
    expected = sorted(f"{host}-{k}" for world in launch.worlds for host in world for k in range(launch.processes))
    assert sorted(rehearsed.ranks) == expected
    sent = dict(zip(launch.arguments[::2], launch.arguments[1::2])).get("--note")
    said = []
    for world in launch.worlds:
        for place, host in enumerate(world):
            for local_rank, seen in enumerate(rehearsed.on(host)):
                rank = place * launch.processes + local_rank
                _check_ranks(launch, seen, world, rank)
                _check_weights(seen, plain(launch.size(world)))
                # The files tell each host its own name.
                assert seen["hostname"] == seen["current_host"] == host
                assert seen["note"] == sent
                # Only rank zero logs before anybody joins.
                assert (seen["rank_before_joining"] == 0) == (rank == 0)
                assert (seen["collectives"] > 0) == (launch.backend == "smddp")
                said.append((host, rank, launch.size(world)))
    uploads = [(each["host"], each["name"]) for each in rehearsed.summary["uploads"] if "model.tar" in each["target"]]
    assert sorted(uploads) == sorted((world[0], name) for world in launch.worlds for name in ("model.pt", "model.json"))
    # Each rank that joined has said it once, before it joined.
    told = sorted((host, each["global_rank"], each["world_size"]) for host, each in rehearsed.topologies)
    assert told == sorted(said)


def _check_ranks(launch, seen, world, rank):
    """Our ranks are those of torch.distributed and of the launcher."""
    size, (place, local_rank) = launch.size(world), divmod(rank, launch.processes)
    ways, addresses = list(seen["ways"].values()), set()
    for way in ways:
        assert way["trainer"] == [rank, size, local_rank, place]
        assert way["num_nodes"] == len(world)
        environment = way["environment"]
        if environment is None:
            assert size == 1
            continue
        assert environment["class"] == "SageMakerEnvironment"
        assert environment["ranks"] == [rank, size, local_rank]
        assert environment["node_rank"] == place
        assert way["distributed"] == [rank, size, launch.backend]
        addresses.add(environment["main"])
    # The last way is the strategy itself, which joins a world of one as well.
    assert ways[-1]["distributed"] is not None
    # On one host torchrun without a master address, which is how the toolkit starts it, makes its own.
    assert len(addresses) == 1
    assert len(world) == 1 or addresses == {f"{world[0]}:7777"}
    told = seen["variables"]
    if "TORCHELASTIC_RUN_ID" in told:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")
        assert [int(told[name]) for name in names] == [rank, size, local_rank, place, len(world)]
    if "OMPI_COMM_WORLD_RANK" in told:
        names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        assert [int(told[name]) for name in names] == [rank, size, local_rank, launch.processes]
    assert seen["topology"]["launcher"] == launch.launcher_of(world)


def _check_weights(seen, reference):
    """Our weights are those of plain Lightning."""
    # One process without DDP has no environment, and Lightning leaves the order of its data alone.
    for way in (way for way in seen["ways"].values() if way["environment"]):
        assert way["steps"] == reference["steps"]
        for key in ("after_one", "tested", "after_two"):
            assert way[key] == pytest.approx(reference[key], abs=1e-7)
