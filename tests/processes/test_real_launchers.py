"""Two real processes under each launcher end with the weights of plain Lightning."""

from pathlib import Path

import pytest

from lightning_sm._lightning import Namespace, installed_namespaces
from lightning_sm._lightning.legacy import strategy_path
from tests.helpers.processes import Job

_SCRIPT = Path(__file__).parent / "train_each_way.py"
_WAYS = ("class", "name", "plugin")
_FEW = ("class", "plugin")
# How it is started, processes per host, hosts, namespace (where it is installed, else the only one), and the ways: a
# name becomes the class before anything depends on the launcher. tests/toolkits has torchrun on two hosts and mpirun,
# which tests/sharded starts without a toolkit as well.
_LAUNCHES = {
    "torchrun_one_host": (lambda job: job.torchrun(1, 2), 2, 1, "pytorch_lightning", _WAYS),
    "one_process_on_two_hosts": (lambda job: job.one_per_host(2), 1, 2, "pytorch_lightning", _FEW),
    "one_host_two_devices": (lambda job: job.one_per_host(1), 2, 1, "lightning.pytorch", _FEW),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What Lightning's own DDP makes of the same model, data and world size, as a dict of its results."""
    namespace = installed_namespaces()[0].name
    job = Job(tmp_path_factory.mktemp("plain"), _SCRIPT, namespace, 2, 1, "plain")
    found = job.plain().results(2)[0]["ways"]["plain"]
    # It has really trained.
    assert (found["steps"], found["distributed"]) == (8, [0, 2, "gloo"])
    return found


# The one that runs with every other test.
_DEFAULT = "torchrun_one_host"


@pytest.fixture(
    scope="module",
    params=[name if name == _DEFAULT else pytest.param(name, marks=pytest.mark.full) for name in _LAUNCHES],
)
def launched(request, tmp_path_factory):
    start, processes, hosts, name, ways = _LAUNCHES[request.param]
    namespace = name if Namespace(name).is_installed else installed_namespaces()[0].name
    job = Job(tmp_path_factory.mktemp(request.param), _SCRIPT, namespace, processes, hosts, *ways)
    return start(job).results(2), processes, hosts


def test_weights_are_those_of_plain_lightning(launched, plain):
    for seen in (seen for result in launched[0] for seen in result["ways"].values()):
        assert seen["steps"] == plain["steps"]
        assert seen["after_one"] == pytest.approx(plain["after_one"], abs=1e-7)
        assert seen["after_two"] == pytest.approx(plain["after_two"], abs=1e-7)
        assert seen["tested"] == pytest.approx(plain["tested"], abs=1e-7)
        assert seen["after_one"] != seen["after_two"]


def test_everybody_agrees_about_ranks(launched):
    results, processes, hosts = launched
    for rank, way, seen in [(rank, *way) for rank, result in enumerate(results) for way in result["ways"].items()]:
        local_rank, node_rank = rank % processes, rank // processes
        assert seen["ranks"] == [rank, 2, local_rank]
        assert seen["node_rank"] == node_rank
        assert seen["distributed"] == [rank, 2, "gloo"]
        assert seen["trainer"] == [rank, 2, local_rank, node_rank]
        assert seen["num_nodes"] == hosts
        assert seen["environment"] == "SageMakerEnvironment"
        plugin_strategy = strategy_path(installed_namespaces()[0], "DDP").partition(":")[2]
        assert seen["strategy"] == (plugin_strategy if way == "plugin" else "SMDDPStrategy")


def test_only_rank_zero_logs_from_the_import_on(launched):
    for rank, result in enumerate(launched[0]):
        assert result["rank_after_import"] == rank
        assert {seen["rank_zero_only"] for seen in result["ways"].values()} == {rank}
