"""One test for each row of the rank table, and the traps of each launcher."""

import pytest

from lightning_sm import Launcher, Topology, TrainingJob
from lightning_sm.errors import JobConfigError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import group


def _resolve(environ, hostname="nowhere"):
    return Topology.resolve({name: str(value) for name, value in environ.items()}, hostname=hostname)


def _world(topology):
    return topology.global_rank, topology.world_size, topology.local_rank, topology.local_world_size


def _nodes(topology):
    return topology.node_rank, topology.num_nodes


_WRAPPER = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1}


@pytest.mark.parametrize(
    ("environ", "launcher", "world", "nodes"),
    [
        (torchrun(3, 4, 1, 2, 1), Launcher.TORCHRUN, (3, 4, 1, 2), (1, 2)),
        (torchrun(0, 2, 0, 2, 0), Launcher.TORCHRUN, (0, 2, 0, 2), (0, 1)),
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
        ({}, Launcher.LOCAL, (None, None, 0, None), (0, 1)),
        # The children that Lightning starts on a laptop.
        ({"LOCAL_RANK": 1}, Launcher.LOCAL, (None, None, 1, None), (0, 1)),
    ],
)
def test_row(environ, launcher, world, nodes):
    topology = _resolve(environ)
    assert (topology.launcher, _world(topology), _nodes(topology)) == (launcher, world, nodes)
    assert topology.is_external is (world[1] is not None)


@pytest.mark.parametrize(("current", "node_rank"), [("algo-2", 0), ("algo-1", 1)])
def test_row_of_one_process_per_host(opt_ml, current, node_rank):
    opt_ml.host(current, "algo-2", "algo-1", groups=(group("g", "algo-2", "algo-1"),))
    topology = _resolve(opt_ml.environ(MASTER_ADDR="algo-2", MASTER_PORT=7777))
    assert topology.launcher == Launcher.HOST
    assert (_world(topology), _nodes(topology)) == ((None, None, 0, None), (node_rank, 2))
    assert not topology.is_external


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
    ],
)
def test_first_row_that_applies_wins(opt_ml, environ, launcher, rank):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    topology = _resolve(opt_ml.environ(**environ))
    assert (topology.launcher, topology.global_rank) == (launcher, rank)


def test_rank_variables_in_a_container_are_counted_by_its_hosts(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    topology = _resolve(opt_ml.environ(RANK=1, WORLD_SIZE=2, LOCAL_RANK=0))
    assert (topology.launcher, _world(topology), _nodes(topology)) == (Launcher.VARIABLES, (1, 2, 0, 1), (1, 2))


def test_mpi_node_rank_variable_is_not_the_node():
    # It counts processes of one node: here 0 on every host.
    topologies = [_resolve(mpirun(rank, 2, 0, 1, OMPI_COMM_WORLD_NODE_RANK=0)) for rank in (0, 1)]
    assert [_nodes(topology) for topology in topologies] == [(0, 2), (1, 2)]


def test_mpi_with_the_leaders_variables_on_another_host(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    leaders = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1","algo-2"]', "SM_NUM_GPUS": "8"}
    topology = _resolve(opt_ml.environ(**leaders, **mpirun(1, 2, 0, 1)))
    assert (_world(topology), _nodes(topology)) == ((1, 2, 0, 1), (1, 2))
    assert TrainingJob.resolve(opt_ml.environ(**leaders)).current_host == "algo-2"


def test_host_with_the_leaders_variables_and_no_file_goes_by_its_own_name():
    leaders = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1","algo-2"]'}
    assert _nodes(_resolve(leaders, hostname="algo-2")) == (1, 2)
    assert _nodes(_resolve(leaders, hostname="ip-10-0-0-1")) == (0, 2)


def test_host_file_comes_before_the_hosts_name(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    assert _nodes(_resolve(opt_ml.environ(), hostname="algo-1")) == (1, 2)


def test_order_given_is_kept_where_algo_10_sorts_before_algo_2(opt_ml):
    hosts = [f"algo-{number}" for number in (1, 10, 2, 3)]
    opt_ml.host("algo-2", *hosts)
    topology = _resolve(opt_ml.environ())
    assert (topology.node_rank, topology.main_address) == (2, "algo-1")


def test_main_host_is_the_first_given_not_the_first_sorted(opt_ml):
    opt_ml.host("algo-1", "algo-1", "algo-2", "algo-3", groups=(group("g", "algo-3", "algo-1", "algo-2"),))
    topology = _resolve(opt_ml.environ())
    assert (topology.node_rank, topology.num_nodes, topology.main_address) == (1, 3, "algo-3")


@pytest.mark.parametrize("variable", ["MASTER_ADDR", "SM_MASTER_ADDR"])
@pytest.mark.parametrize(("current", "nodes"), [("algo-2", (0, 2)), ("algo-1", (1, 2))])
def test_main_host_without_a_launcher_is_the_one_with_rank_zero(opt_ml, variable, current, nodes):
    # Without a distribution the toolkit names the first of the sorted hosts.
    opt_ml.host(current, "algo-1", "algo-2", groups=(group("g", "algo-2", "algo-1"),))
    topology = _resolve(opt_ml.environ(**{variable: "algo-1", "MASTER_PORT": 7777}))
    assert (_nodes(topology), topology.main_address) == (nodes, "algo-2")
    assert topology.sources["main_address"] == "first host of the group, which has rank 0"


@pytest.mark.parametrize(("current", "main"), [("algo-1", "algo-1"), ("algo-2", "algo-2")])
def test_two_groups_without_a_distribution_are_two_worlds(opt_ml, current, main):
    opt_ml.host(current, "algo-1", "algo-2", groups=(group("one", "algo-1"), group("two", "algo-2")))
    topology = _resolve(opt_ml.environ(MASTER_ADDR="algo-1"))
    assert (_nodes(topology), topology.main_address) == ((0, 1), main)


def test_an_address_that_is_no_host_of_the_job_is_meant(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    assert _resolve(opt_ml.environ(MASTER_ADDR="10.0.0.7")).main_address == "10.0.0.7"


def test_a_launchers_main_host_is_its_own(opt_ml):
    opt_ml.host("algo-1", "algo-1", "algo-2", groups=(group("g", "algo-2", "algo-1"),))
    assert _resolve(opt_ml.environ(**torchrun(1, 2, 0, 1, 1, MASTER_ADDR="algo-1"))).main_address == "algo-1"


_GROUPS = (group("gpu", "algo-3", "algo-1"), group("cpu", "algo-2", "algo-4"))


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
    opt_ml.host(current, "algo-1", "algo-2", "algo-3", "algo-4", groups=_GROUPS)
    opt_ml.hyperparameters(sagemaker_distribution_instance_groups=["gpu"])
    topology = _resolve(opt_ml.environ(MASTER_ADDR="algo-3", MASTER_PORT=7777))
    assert (_nodes(topology), topology.main_address) == (nodes, main)


def test_torchrun_makes_one_world_for_each_group(opt_ml):
    # SDK v2 sends no group list for torch_distributed, so SM_HOSTS counts hosts of other worlds: trap 5.
    opt_ml.host("algo-2", "algo-1", "algo-2", "algo-3", "algo-4", groups=_GROUPS)
    topology = _resolve(opt_ml.environ(**torchrun(0, 2, 0, 1, 0, MASTER_ADDR="algo-2")))
    assert (_nodes(topology), topology.main_address) == ((0, 2), "algo-2")


def test_hosts_with_unequal_numbers_under_torchrun():
    # Three processes on the first host, one on the second: only torchrun's own count of nodes is right.
    assert _nodes(_resolve(torchrun(3, 4, 0, 1, 1, nodes=2))) == (1, 2)
    assert _nodes(_resolve(torchrun(0, 4, 0, 3, 0, nodes=2))) == (0, 2)
    assert _nodes(_resolve(torchrun(3, 4, 0, 1, 1))) == (1, 4)


def test_local_mode_without_groups(opt_ml):
    opt_ml.local_mode("algo-2-x", "algo-1-x", "algo-2-x")
    topology = _resolve(opt_ml.environ())
    assert (_nodes(topology), topology.main_address, topology.main_port) == ((1, 2), "algo-1-x", 7777)


def test_sdk_v3_variables(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2")
    topology = _resolve(opt_ml.environ(SM_MASTER_ADDR="algo-1", SM_MASTER_PORT="7778", SM_CURRENT_HOST_RANK="1"))
    assert (_nodes(topology), topology.main_address, topology.main_port) == ((1, 2), "algo-1", 7778)
    assert topology.sources["main_address"] == "SM_MASTER_ADDR"


@pytest.mark.parametrize(
    ("variables", "main"),
    [
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1", "SM_MASTER_ADDR": "b", "SM_MASTER_PORT": "2"}, ("a", 1)),
        ({"SM_MASTER_ADDR": "b", "SM_MASTER_PORT": "2"}, ("b", 2)),
        ({"MASTER_ADDR": "a", "SM_MASTER_PORT": "2"}, ("a", 2)),
        ({}, ("algo-1", 7777)),
    ],
)
def test_main_host_and_port(opt_ml, variables, main):
    topology = _resolve(opt_ml.host("algo-2", "algo-1", "algo-2").environ(**variables))
    assert (topology.main_address, topology.main_port) == main


def test_torchrun_on_one_host_uses_its_own_localhost(opt_ml):
    environ = torchrun(1, 2, 1, 2, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=29500, SM_MASTER_ADDR="algo-1")
    topology = _resolve(opt_ml.host("algo-1").environ(**environ))
    assert (topology.main_address, topology.main_port) == ("127.0.0.1", 29500)


def test_mpirun_on_one_machine_without_any_address():
    topology = _resolve(mpirun(1, 2, 1, 2))
    assert (topology.main_address, topology.main_port) == ("127.0.0.1", 7777)


def test_mpirun_over_several_hosts_without_any_address():
    assert _resolve(mpirun(1, 2, 0, 1)).main_address is None


def test_stray_node_rank_on_a_laptop_is_ignored():
    assert _resolve({"NODE_RANK": "3", "GROUP_RANK": "2", "SM_CURRENT_HOST": "algo-1"}) == _resolve({})


def test_world_size_that_means_nodes(opt_ml):
    # Some platforms count hosts in WORLD_SIZE; together with a local size this is no world.
    opt_ml.host("algo-1", "algo-1", "algo-2")
    with pytest.raises(TopologyError, match=r"Rank 1 of 2 .* local rank 1 of 8|local_world_size is 8 .* is 2"):
        _resolve(opt_ml.environ(RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=8))


@pytest.mark.parametrize(
    ("environ", "error", "says"),
    [
        (torchrun(4, 4, 1, 2, 1), TopologyError, r"global_rank is 4 by RANK, but world_size is 4 by WORLD_SIZE.*HINT"),
        (torchrun(1, 4, 2, 2, 0), TopologyError, "local_rank is 2 by LOCAL_RANK"),
        (torchrun(1, 2, 1, 4, 0), TopologyError, "local_world_size is 4 by LOCAL_WORLD_SIZE"),
        (torchrun(1, 4, 1, 2, 2, nodes=2), TopologyError, "node_rank is 2 by GROUP_RANK"),
        (torchrun("x", 4, 1, 2, 1), JobConfigError, "RANK is 'x'"),
        (torchrun(-1, 4, 1, 2, 1), JobConfigError, "RANK is '-1'"),
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


def test_world_size_that_fits_no_number_of_hosts(opt_ml):
    opt_ml.host("algo-1", "algo-1", "algo-2")
    with pytest.raises(TopologyError, match=r"WORLD_SIZE is 3, which is not a multiple of the 2 hosts.*HINT"):
        _resolve(opt_ml.environ(RANK=0, WORLD_SIZE=3, LOCAL_RANK=0))


def test_host_that_its_own_group_does_not_name(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2", groups=(group("g", "algo-1"),), current_group="g")
    with pytest.raises(TopologyError, match=r"'algo-2', which is not among the hosts \['algo-1'\].*HINT"):
        _resolve(opt_ml.environ())
