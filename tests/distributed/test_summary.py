"""The topology that rank zero logs once: as a value, and by real trainers."""

import importlib
import importlib.util
import re
import socket
import threading
import time

import pytest

from lightning_sm import Launcher, SageMakerEnvironment, Topology, TrainingJob
from lightning_sm._distributed import summary
from lightning_sm._distributed.summary import TopologySummary, installed_software, log_once, resolve_hosts
from lightning_sm._sagemaker.job_files import InstanceGroup
from tests.helpers.environ import torchrun
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

_NAMESPACES = ["pytorch_lightning", "lightning.pytorch"]


@pytest.fixture(autouse=True)
def not_logged_yet(monkeypatch):
    monkeypatch.setattr(summary, "_is_logged", False)


def _hosts(count):
    return tuple(f"algo-{number + 1}" for number in range(count))


def _resolver(monkeypatch, **addresses):
    """Names that take seconds, fail or have an address."""

    def getaddrinfo(name, *_, **__):
        answer = addresses.get(name.replace("-", "_"), "10.0.0.9")
        if isinstance(answer, float):
            time.sleep(answer)
            answer = "10.0.0.8"
        if answer is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_all_of_it_as_lines(monkeypatch):
    _resolver(monkeypatch, algo_1="10.0.0.1", algo_2=None)
    environ = torchrun(0, 16, 0, 8, 0, MASTER_ADDR="algo-1", MASTER_PORT=7777)
    job = TrainingJob(
        in_container=True,
        name="bert-2026",
        current_host="algo-1",
        hosts=_hosts(2),
        instance_groups=(InstanceGroup("homogeneousCluster", "ml.p4d.24xlarge", _hosts(2)),),
        current_group_name="homogeneousCluster",
        num_gpus=8,
    )
    found = TopologySummary.of(
        job,
        Topology.resolve(environ, job),
        world_size=16,
        backend="nccl",
        backend_reason="the job's distribution is not smdistributed.dataparallel",
        main="algo-1:7777",
    )
    *lines, versions = str(found).splitlines()
    assert lines == [
        "topology: job: bert-2026",
        "topology: launcher: torchrun, by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK",
        "topology: world: 16 processes, 8 on this host, 2 hosts",
        "topology: hosts: algo-1=10.0.0.1, algo-2=not resolved yet",
        "topology: master: algo-1:7777 (by MASTER_ADDR, MASTER_PORT)",
        "topology: backend: nccl, because the job's distribution is not smdistributed.dataparallel",
        "topology: instances: 2 x ml.p4d.24xlarge (8 GPUs on this host)",
    ]
    assert re.match(r"topology: versions: lightning_sm \d.*, Python 3\.\d", versions)


def test_groups_that_train_together_are_counted_by_type(monkeypatch):
    _resolver(monkeypatch)
    groups = (
        InstanceGroup("a", "ml.p4d.24xlarge", ("algo-1",)),
        InstanceGroup("b", "ml.p3.16xlarge", ("algo-2", "algo-3")),
        InstanceGroup("not-training", "ml.m5.large", ("algo-4",)),
    )
    job = TrainingJob(
        True, hosts=_hosts(4), instance_groups=groups, current_group_name="a", distribution_groups=("a", "b")
    )
    found = TopologySummary.of(job, Topology(Launcher.HOST, num_nodes=3), world_size=3)
    assert found.instances == (("ml.p4d.24xlarge", 1), ("ml.p3.16xlarge", 2))
    assert [name for name, _ in found.hosts] == ["algo-1", "algo-2", "algo-3"]
    # Local mode names no groups.
    job = TrainingJob(True, hosts=_hosts(2), current_instance_type="local_gpu")
    assert TopologySummary.of(job, Topology(Launcher.HOST), world_size=2).instances == (("local_gpu", 2),)


def test_the_lines_of_many_hosts_stay_short():
    hosts = tuple((name, f"10.0.{index}.1") for index, name in enumerate(_hosts(100)))
    lines = str(TopologySummary("torchrun", (), hosts, 800)).splitlines()
    assert len([line for line in lines if line.startswith("topology: hosts: ")]) == 13
    assert max(map(len, lines)) < 200
    assert all(f"{name}={address}" in "\n".join(lines) for name, address in hosts)


def test_a_name_server_that_hangs_delays_nobody(monkeypatch):
    _resolver(monkeypatch, **{f"algo_{number}": 5.0 for number in range(2, 101)}, algo_1="10.0.0.1")
    before = time.monotonic()
    found = resolve_hosts(_hosts(100), timeout=0.3)
    assert time.monotonic() - before < 2
    assert found["algo-1"] == "10.0.0.1"
    assert list(found) == list(_hosts(100))
    assert {address for name, address in found.items() if name != "algo-1"} == {None}
    # The interpreter does not wait for those that hang.
    assert all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())


def test_names_that_are_none_resolve_to_nothing():
    assert resolve_hosts(["x" * 70, "", "a..b", "127.0.0.1"])["127.0.0.1"] == "127.0.0.1"
    assert resolve_hosts([]) == {}


def test_software_is_what_is_loaded():
    torch = pytest.importorskip("torch")
    pytorch_lightning = pytest.importorskip("pytorch_lightning")
    found = installed_software()
    assert found["torch"] == torch.__version__
    assert found["pytorch_lightning"] == pytorch_lightning.__version__
    assert ("NCCL" in found) == (torch.version.cuda is not None)


def test_once_and_in_one_write(capsys):
    value = TopologySummary("mpirun", ("OMPI_COMM_WORLD_RANK",), world_size=2)
    with log_lines() as lines:
        log_once(lambda: value)
        log_once(lambda: pytest.fail("built again"))
    assert lines == [str(value)]


def test_an_error_ends_nothing():
    def build():
        raise OSError("no memory")

    with log_lines() as lines:
        log_once(build)
    assert lines == ["The topology is not shown: OSError: no memory"]


def _fit(name, **arguments):
    module = importlib.import_module(name)
    trainer = module.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(tiny_model(module), loader())
    return trainer


@pytest.mark.parametrize("name", _NAMESPACES)
@pytest.mark.parametrize("is_given", [True, False])
def test_one_process_on_one_host(in_environ, opt_ml, name, is_given):
    pytest.importorskip(name)
    in_environ(opt_ml.host("algo-1").environ())
    with log_lines() as lines:
        for _ in range(2):
            _fit(name, **({"plugins": [SageMakerEnvironment()]} if is_given else {}))
    (text,) = [line for line in lines if line.startswith("topology: ")]
    assert "\ntopology: world: 1 process, 1 host\n" in f"\n{text}\n"
    assert "\ntopology: hosts: algo-1=" in text
    assert "backend" not in text
    assert "master" not in text


def test_nothing_on_a_laptop():
    with log_lines() as lines:
        _fit(next(name for name in _NAMESPACES if importlib.util.find_spec(name.partition(".")[0])))
        SageMakerEnvironment(Topology(Launcher.LOCAL)).log_summary()
    assert not [line for line in lines if line.startswith("topology")]


def test_nothing_on_other_ranks(in_environ):
    in_environ(torchrun(1, 2, 1, 2, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=1234))
    with log_lines() as lines:
        SageMakerEnvironment().log_summary()
    assert not lines
