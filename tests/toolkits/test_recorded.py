"""``Topology`` from the environment of real launchers, as ``tests/toolkits/record.py`` recorded it."""

import json

import pytest

from lightning_sm import Topology, TrainingJob
from lightning_sm._distributed.summary import describe_topology
from lightning_sm.errors import JobConfigError

from .launches import LAUNCHES
from .record import RECORDED

_RANKS = [
    pytest.param(name, rank, seen, id=f"{name}-{rank}")
    for name in LAUNCHES
    for rank, seen in json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["ranks"].items()
]


_IS_CUT = "smddp_two_hosts-algo-2-0"


def moved_to(base):
    """The variables that tell where the files are, which were below ``/opt/ml``."""
    return {"SAGEMAKER_BASE_DIR": str(base), "SM_INPUT_CONFIG_DIR": str(base / "input" / "config")}


@pytest.fixture
def resolve(opt_ml):
    """Return a function that reads a recorded rank's topology; its files lie in a folder of the test's own."""

    def run(seen):
        for name, content in seen["files"].items():
            opt_ml.write(name, content)
        environ = {**seen["variables"], **moved_to(opt_ml.base)}
        job = TrainingJob.resolve(environ)
        return job, Topology.resolve(environ, job, seen["hostname"])

    return run


def test_every_launch_is_recorded_and_no_other():
    assert {path.stem for path in RECORDED.glob("*.json")} == set(LAUNCHES)


@pytest.mark.parametrize(("name", "rank", "seen"), _RANKS)
def test_the_topology_is_the_one_that_torch_saw(resolve, name, rank, seen, tmp_path):
    launch, (host, local_rank) = LAUNCHES[name], (seen["hostname"], int(rank.rpartition("-")[2]))
    (world,) = [world for world in launch.worlds if host in world]
    truth, (job, topology) = seen["truth"], resolve(seen)
    assert topology.launcher == launch.launcher_of(world)
    assert job.current_host == host
    assert (topology.num_nodes, topology.node_rank) == (len(world), world.index(host))
    assert topology.local_rank == local_rank
    assert topology.is_rank_zero == (truth["global_rank"] == 0)
    if topology.is_external:
        assert (topology.global_rank, topology.world_size) == (truth["global_rank"], truth["world_size"])
        assert topology.local_world_size == launch.processes
    else:
        assert topology.node_rank * launch.processes + local_rank == truth["global_rank"]
    if len(world) > 1:
        assert (topology.main_address, topology.main_port) == (world[0], 7777)
    # A launcher's variables are enough without the files.
    if f"{name}-{rank}" != _IS_CUT and seen["variables"].keys() & {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK"}:
        topology = Topology.resolve({**seen["variables"], **moved_to(tmp_path)}, hostname=seen["hostname"])
        assert (topology.global_rank, topology.world_size) == (truth["global_rank"], truth["world_size"])


def test_variables_that_were_cut_are_named_where_there_are_no_files(tmp_path):
    (seen,) = [case.values[2] for case in _RANKS if case.id == _IS_CUT]
    # As pam_env left them: it takes what follows "#" for a comment.
    assert seen["variables"]["SM_HPS"] == '{"backend":"smddp","note":"before'
    with pytest.raises(JobConfigError, match="SM_HPS"):
        TrainingJob.resolve({**seen["variables"], **moved_to(tmp_path)})


def test_the_toolkit_starts_a_parameter_server_job_like_one_without_a_distribution(resolve):
    (seen, _) = [case.values[2] for case in _RANKS if case.values[0] == "none_parameter_server"]
    job, topology = resolve(seen)
    assert job.asks_for_parameter_server
    lines = describe_topology(job, topology, 2).splitlines()
    assert sum("Lightning trains by all-reduce" in line for line in lines) == 1
