"""One test for each row of the rank table, and the traps of each launcher."""

import pytest

from lightning_sm import Launcher, Topology
from lightning_sm.errors import JobConfigError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import group


def _resolve(environ, hostname="nowhere"):
    return Topology.resolve({name: str(value) for name, value in environ.items()}, hostname=hostname)


def _nodes(topology):
    return topology.node_rank, topology.num_nodes


_WRAPPER = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1}


@pytest.mark.parametrize(
    ("environ", "launcher", "world", "nodes"),
    [
        (torchrun(3, 4, 1, 2, 1), Launcher.TORCHRUN, (3, 4, 1, 2), (1, 2)),
        (torchrun(0, 2, 0, 2, 0), Launcher.TORCHRUN, (0, 2, 0, 2), (0, 1)),
        # Hosts with unequal numbers: only torchrun's own count of nodes is right.
        (torchrun(3, 4, 0, 1, 1, nodes=2), Launcher.TORCHRUN, (3, 4, 0, 1), (1, 2)),
        (torchrun(0, 4, 0, 3, 0, nodes=2), Launcher.TORCHRUN, (0, 4, 0, 3), (0, 2)),
        # HyperPod's agent, whose number of groups counts processes.
        (torchrun(3, 4, 1, 2, 1, 4), Launcher.TORCHRUN, (3, 4, 1, 2), (1, 2)),
        (torchrun(7, 8, 7, 8, 0, 8), Launcher.TORCHRUN, (7, 8, 7, 8), (0, 1)),
        ({**_WRAPPER, "LOCAL_WORLD_SIZE": 2}, Launcher.VARIABLES, (3, 4, 1, 2), (1, 2)),
        ({**_WRAPPER, "OMPI_COMM_WORLD_LOCAL_SIZE": 2}, Launcher.VARIABLES, (3, 4, 1, 2), (1, 2)),
        # DeepSpeed's launcher.
        ({**_WRAPPER, "CROSS_RANK": 1, "CROSS_SIZE": 2, "LOCAL_SIZE": 2}, Launcher.VARIABLES, (3, 4, 1, 2), (1, 2)),
        # AzureML and wrappers for Slurm do not say how many processes each host has: left to Lightning.
        ({**_WRAPPER, "NODE_RANK": 1}, Launcher.LOCAL, (None, None, 1, None), (0, 1)),
        ({"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0}, Launcher.LOCAL, (None, None, 0, None), (0, 1)),
        (mpirun(3, 4, 1, 2), Launcher.MPI, (3, 4, 1, 2), (1, 2)),
        (mpirun(0, 1, 0, 1), Launcher.MPI, (0, 1, 0, 1), (0, 1)),
        # OMPI_COMM_WORLD_NODE_RANK counts processes of one node: 0 on both hosts.
        (mpirun(0, 2, 0, 1, OMPI_COMM_WORLD_NODE_RANK=0), Launcher.MPI, (0, 2, 0, 1), (0, 2)),
        (mpirun(1, 2, 0, 1, OMPI_COMM_WORLD_NODE_RANK=0), Launcher.MPI, (1, 2, 0, 1), (1, 2)),
        ({}, Launcher.LOCAL, (None, None, 0, None), (0, 1)),
        # The children that Lightning starts on a laptop.
        ({"LOCAL_RANK": 1}, Launcher.LOCAL, (None, None, 1, None), (0, 1)),
    ],
)
def test_row(environ, launcher, world, nodes):
    topology = _resolve(environ)
    found = (topology.global_rank, topology.world_size, topology.local_rank, topology.local_world_size)
    assert (topology.launcher, found, _nodes(topology)) == (launcher, world, nodes)
    assert topology.is_external is (world[1] is not None)


@pytest.mark.parametrize(
    ("environ", "launcher", "rank"),
    [
        ({**mpirun(2, 4, 0, 2), **torchrun(3, 4, 1, 2, 1)}, Launcher.TORCHRUN, 3),
        ({**mpirun(2, 4, 0, 2), **_WRAPPER}, Launcher.VARIABLES, 3),
        (mpirun(2, 4, 0, 2), Launcher.MPI, 2),
        # Not all three: some platforms set WORLD_SIZE alone.
        ({"RANK": "0", "WORLD_SIZE": "2"}, Launcher.HOST, None),
        ({"WORLD_SIZE": "2", "NODE_RANK": "0"}, Launcher.HOST, None),
        ({**mpirun(2, 4, 0, 2), "RANK": ""}, Launcher.MPI, 2),
        # A script set RANK, to the index of its host or for one process, and Lightning the rest where it starts others.
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "1"}, Launcher.HOST, None),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}, Launcher.HOST, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "1", "NODE_RANK": "1"}, Launcher.HOST, None),
        # A wrapper that also sets NODE_RANK.
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}, Launcher.VARIABLES, 3),
    ],
)
def test_first_row_that_applies_wins(opt_ml, environ, launcher, rank):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    topology = _resolve(opt_ml.environ(**environ))
    assert (topology.launcher, topology.global_rank) == (launcher, rank)


_TWO = ("algo-1", "algo-2")
_GROUP = (group("g", "algo-2", "algo-1"),)
_GPU_AND_CPU = (group("gpu", "algo-3", "algo-1"), group("cpu", "algo-2", "algo-4"))
_FOUR = ("algo-1", "algo-2", "algo-3", "algo-4")
_SORTED = tuple(f"algo-{number}" for number in (1, 10, 2, 3))
_OWN_GROUPS = (group("one", "algo-1"), group("two", "algo-2"))
_LEADERS = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1","algo-2"]', "SM_NUM_GPUS": "8"}


@pytest.mark.parametrize(
    ("current", "hosts", "groups", "variables", "nodes", "main"),
    [
        ("algo-2", _TWO, None, {}, (1, 2), ("algo-1", 7777)),
        # The order that is given counts, where algo-10 sorts before algo-2 and where a group has another one.
        ("algo-2", _SORTED, None, {}, (2, 4), ("algo-1", 7777)),
        ("algo-1", _TWO, _GROUP, {"MASTER_ADDR": "algo-2", "MASTER_PORT": 7778}, (1, 2), ("algo-2", 7778)),
        # Without a distribution the toolkit names the first of the sorted hosts.
        ("algo-2", _TWO, _GROUP, {"MASTER_ADDR": "algo-1"}, (0, 2), ("algo-2", 7777)),
        ("algo-1", _TWO, _GROUP, {"SM_MASTER_ADDR": "algo-1"}, (1, 2), ("algo-2", 7777)),
        # Scripts for one host name themselves.
        ("algo-2", _TWO, None, {"MASTER_ADDR": "localhost", "MASTER_PORT": 12355}, (1, 2), ("algo-1", 12355)),
        ("algo-1", ("algo-1",), None, {"MASTER_ADDR": "127.0.0.1"}, (0, 1), ("127.0.0.1", 7777)),
        # Two groups without a distribution are two worlds.
        ("algo-1", _TWO, _OWN_GROUPS, {"MASTER_ADDR": "algo-1"}, (0, 1), ("algo-1", 7777)),
        ("algo-2", _TWO, _OWN_GROUPS, {"MASTER_ADDR": "algo-1"}, (0, 1), ("algo-2", 7777)),
        # An address that is no host of the job is meant; a launcher's main host is its own.
        ("algo-2", _TWO, None, {"MASTER_ADDR": "10.0.0.7"}, (1, 2), ("10.0.0.7", 7777)),
        ("algo-1", _TWO, _GROUP, torchrun(1, 2, 0, 1, 1, MASTER_ADDR="algo-1"), (1, 2), ("algo-1", 7777)),
        ("algo-1", ("algo-1",), None,
         torchrun(1, 2, 1, 2, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=29500, SM_MASTER_ADDR="algo-1"),
         (0, 1), ("127.0.0.1", 29500)),
        # SDK v2 sends no group list for torch_distributed, so SM_HOSTS counts hosts of other worlds: trap 5.
        ("algo-2", _FOUR, _GPU_AND_CPU, torchrun(0, 2, 0, 1, 0, MASTER_ADDR="algo-2"), (0, 2), ("algo-2", 7777)),
        # SDK v3's variables, and both.
        ("algo-2", _TWO, None, {"SM_MASTER_ADDR": "algo-1", "SM_MASTER_PORT": "7778"}, (1, 2), ("algo-1", 7778)),
        ("algo-2", _TWO, None, {"MASTER_ADDR": "a", "MASTER_PORT": 1, "SM_MASTER_ADDR": "b", "SM_MASTER_PORT": 2},
         (1, 2), ("a", 1)),
        ("algo-2", _TWO, None, {"MASTER_ADDR": "a", "SM_MASTER_PORT": "2"}, (1, 2), ("a", 2)),
        # mpirun hands the variables of its host to all.
        ("algo-2", _TWO, None, {**_LEADERS, **mpirun(1, 2, 0, 1)}, (1, 2), ("algo-1", 7777)),
        # A wrapper's ranks are counted by the job's hosts.
        ("algo-2", _TWO, None, {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0}, (1, 2), ("algo-1", 7777)),
    ],
)  # fmt: skip
def test_hosts_and_the_main_one(opt_ml, current, hosts, groups, variables, nodes, main):
    opt_ml.host(current, *hosts, **({} if groups is None else {"groups": groups}))
    # The file comes before the host's name.
    topology = _resolve(opt_ml.environ(**variables), hostname="algo-1")
    assert (_nodes(topology), (topology.main_address, topology.main_port)) == (nodes, main)


@pytest.mark.parametrize(
    ("current", "nodes", "main"),
    [
        ("algo-3", (0, 2), "algo-3"),
        ("algo-1", (1, 2), "algo-3"),
        # Outside the distribution, MASTER_ADDR still names the distribution's master: its own group trains by itself.
        ("algo-2", (0, 2), "algo-2"),
        ("algo-4", (1, 2), "algo-2"),
    ],
)
def test_heterogeneous_groups(opt_ml, current, nodes, main):
    opt_ml.host(current, *_FOUR, groups=_GPU_AND_CPU)
    opt_ml.hyperparameters(sagemaker_distribution_instance_groups=["gpu"])
    topology = _resolve(opt_ml.environ(MASTER_ADDR="algo-3", MASTER_PORT=7777))
    assert (_nodes(topology), topology.main_address) == (nodes, main)


def test_host_with_the_leaders_variables_and_no_file_goes_by_its_own_name():
    assert _nodes(_resolve(_LEADERS, hostname="algo-2")) == (1, 2)
    assert _nodes(_resolve(_LEADERS, hostname="ip-10-0-0-1")) == (0, 2)


def test_local_mode_without_groups(opt_ml):
    opt_ml.local_mode("algo-2-x", "algo-1-x", "algo-2-x")
    topology = _resolve(opt_ml.environ())
    assert (_nodes(topology), topology.main_address, topology.main_port) == ((1, 2), "algo-1-x", 7777)


def test_without_a_container():
    topology = _resolve(mpirun(1, 2, 1, 2))
    assert (topology.main_address, topology.main_port) == ("127.0.0.1", 7777)
    assert _resolve(mpirun(1, 2, 0, 1)).main_address is None
    assert _resolve({"NODE_RANK": "3", "GROUP_RANK": "2", "SM_CURRENT_HOST": "algo-1"}) == _resolve({})


@pytest.mark.parametrize(
    ("environ", "error", "says"),
    [
        (torchrun(4, 4, 1, 2, 1), TopologyError, r"global_rank is 4 by RANK, but world_size is 4 by WORLD_SIZE.*HINT"),
        (torchrun(1, 4, 2, 2, 0), TopologyError, "local_rank is 2 by LOCAL_RANK"),
        (torchrun(1, 2, 1, 4, 0), TopologyError, "local_world_size is 4 by LOCAL_WORLD_SIZE"),
        (torchrun(1, 4, 1, 2, 2, nodes=2), TopologyError, "node_rank is 2 by GROUP_RANK"),
        (torchrun("x", 4, 1, 2, 1), JobConfigError, "RANK is 'x'"),
        (torchrun(-1, 4, 1, 2, 1), JobConfigError, "RANK is '-1'"),
        (torchrun("1_000", 4, 1, 2, 1), JobConfigError, "RANK is '1_000'"),
        (torchrun("9" * 5000, 4, 1, 2, 1), JobConfigError, "RANK is '9"),
        (torchrun(0, 0, 0, 1, 0), JobConfigError, "WORLD_SIZE is '0'"),
        (torchrun(0, 1, 0, 1, 0, RANK=""), TopologyError, "RANK is not set.*TORCHELASTIC_RUN_ID.*HINT"),
        (torchrun(0, 1, 0, 1, 0, LOCAL_WORLD_SIZE=""), TopologyError, "LOCAL_WORLD_SIZE is not set"),
        (mpirun(0, 1, 0, 1, OMPI_COMM_WORLD_SIZE=""), TopologyError, "OMPI_COMM_WORLD_SIZE is not set"),
        (mpirun(3, 3, 0, 2), TopologyError, "Rank 3 of 3 is local rank 0 of 2"),
        (mpirun(2, 4, 1, 2), TopologyError, "Rank 2 of 4 is local rank 1 of 2"),
        (mpirun(2, 3, 0, 2), TopologyError, "different numbers"),
        (mpirun(0, "4 slots", 0, 2), JobConfigError, "OMPI_COMM_WORLD_SIZE is '4 slots'"),
        (torchrun(0, 1, 0, 1, 0, MASTER_PORT="http"), JobConfigError, "MASTER_PORT is 'http'"),
        (torchrun(0, 1, 0, 1, 0, MASTER_PORT="65536"), TopologyError, "MASTER_PORT is 65536, which is not a port"),
        (torchrun(0, 1, 0, 1, 0, MASTER_PORT="0"), TopologyError, "MASTER_PORT is 0, which is not a port"),
        ({"LOCAL_RANK": "first"}, JobConfigError, "LOCAL_RANK is 'first'"),
    ],
)
def test_numbers_that_make_no_world(environ, error, says):
    with pytest.raises(error, match=says):
        _resolve(environ)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0},
            "WORLD_SIZE is 3, which is not a multiple of the 2 hosts.*HINT",
        ),
        # Some platforms count hosts in WORLD_SIZE; together with a local size this is no world.
        ({"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 8}, "Rank 1 of 2 .* local rank 1 of 8"),
    ],
)
def test_world_size_that_fits_no_number_of_hosts(opt_ml, variables, says):
    opt_ml.host("algo-1", "algo-1", "algo-2")
    with pytest.raises(TopologyError, match=says):
        _resolve(opt_ml.environ(**variables))


def test_host_that_its_own_group_does_not_name(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2", groups=(group("g", "algo-1"),), current_group="g")
    with pytest.raises(TopologyError, match=r"'algo-2', which is not among the hosts \['algo-1'\].*HINT"):
        _resolve(opt_ml.environ())


@pytest.mark.parametrize("parts", [{"world_size": 0, "global_rank": 0}, {"node_rank": 1, "num_nodes": 1}])
def test_a_world_that_a_program_makes_up(parts):
    with pytest.raises(TopologyError, match=r"is \d+ by default, but .* HINT: These come from the launcher"):
        Topology(Launcher.TORCHRUN, **parts)
