"""Every launcher with SageMaker's real parts: our ranks are torch's and the launcher's, our weights are Lightning's."""

import importlib.util

import pytest

from .launches import LAUNCHES
from .running import needs_launch, rehearse_launch

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]

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


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs_launch(name)) for name in _REHEARSED])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def launch(name):
    return LAUNCHES[name]


@pytest.fixture(scope="module")
def rehearsed(name, tmp_path_factory):
    done = rehearse_launch(name, tmp_path_factory.mktemp(name))
    assert done.exit_code == 0, done.log[-8000:]
    return done


@pytest.fixture(scope="module")
def ranks(launch, rehearsed):
    """Every rank with what it should be: what it wrote, its world's hosts, its host's place there, its global rank."""
    expected = sorted(f"{host}-{k}" for world in launch.worlds for host in world for k in range(launch.processes))
    assert sorted(rehearsed.ranks) == expected
    return [
        (seen, world, place, place * launch.processes + local_rank)
        for world in launch.worlds
        for place, host in enumerate(world)
        for local_rank, seen in enumerate(rehearsed.on(host))
    ]


def ways_of(seen):
    return list(seen["ways"].values())


def test_our_ranks_are_those_of_torch_distributed(launch, ranks):
    for seen, world, place, rank in ranks:
        size, local_rank = launch.size(world), rank % launch.processes
        for way in ways_of(seen):
            assert way["trainer"] == [rank, size, local_rank, place]
            assert way["num_nodes"] == len(world)
            if way["environment"] is None:
                assert size == 1
                continue
            environment = way["environment"]
            assert environment["class"] == "SageMakerEnvironment"
            assert environment["ranks"] == [rank, size, local_rank]
            assert environment["node_rank"] == place
            assert way["distributed"] == [rank, size, launch.backend]
        # The last way is the strategy itself, which joins a world of one as well.
        assert ways_of(seen)[-1]["distributed"] is not None


def test_our_ranks_are_the_launchers(launch, ranks):
    for seen, world, place, rank in ranks:
        told, size, local_rank = seen["variables"], launch.size(world), rank % launch.processes
        if "TORCHELASTIC_RUN_ID" in told:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")
            assert [int(told[name]) for name in names] == [rank, size, local_rank, place, len(world)]
        if "OMPI_COMM_WORLD_RANK" in told:
            names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
            assert [int(told[name]) for name in names] == [rank, size, local_rank, launch.processes]
        assert seen["topology"]["launcher"] == launch.launcher_of(world)


def test_everybody_meets_at_the_worlds_first_host(ranks):
    for seen, world, _, _ in ranks:
        addresses = {way["environment"]["main"] for way in ways_of(seen) if way["environment"]}
        # On one host torchrun without a master address, which is how the toolkit starts it, makes its own.
        assert len(addresses) == 1
        main, port = addresses.pop().split(":")
        if len(world) > 1:
            assert (main, port) == (world[0], "7777")


def test_the_files_tell_each_host_its_own_name(ranks):
    for seen, world, place, _ in ranks:
        assert seen["hostname"] == seen["current_host"] == world[place]


def test_hyperparameters_arrive_whole(launch, ranks):
    sent = dict(zip(launch.arguments[::2], launch.arguments[1::2])).get("--note")
    assert {seen["note"] for seen, _, _, _ in ranks} == {sent}


def test_only_rank_zero_logs_before_anybody_joins(ranks):
    assert [(seen["rank_before_joining"] == 0) == (rank == 0) for seen, _, _, rank in ranks] == [True] * len(ranks)


def test_one_rank_of_each_world_wrote_the_model(launch, rehearsed, ranks):
    writers = [world for seen, world, _, _ in ranks if seen["wrote_model"]]
    assert writers == list(launch.worlds)
    assert all(rank == 0 for seen, _, _, rank in ranks if seen["wrote_model"])
    uploads = [(each["host"], each["name"]) for each in rehearsed.summary["uploads"] if "model.tar" in each["target"]]
    assert sorted(uploads) == sorted((world[0], name) for world in launch.worlds for name in ("model.pt", "model.json"))


def test_weights_are_those_of_plain_lightning(launch, ranks, plain):
    for seen, world, _, _ in ranks:
        reference = plain(launch.size(world))
        for way in ways_of(seen):
            if way["environment"] is None:
                continue  # one process without DDP, in which Lightning leaves the order of the data alone
            assert way["steps"] == reference["steps"]
            for key in ("after_one", "tested", "after_two"):
                assert way[key] == pytest.approx(reference[key], abs=1e-7)


def test_gradients_of_smddp_went_through_its_group(launch, ranks):
    for seen, _, _, _ in ranks:
        assert (seen["collectives"] > 0) == (launch.backend == "smddp")


def test_the_summary_shows_what_each_rank_said(launch, rehearsed, ranks):
    """Each rank that joined has said it once, before it joined."""
    told = sorted((host, each["global_rank"], each["world_size"]) for host, each in rehearsed.topologies)
    assert told == sorted((seen["hostname"], rank, launch.size(world)) for seen, world, _, rank in ranks)
