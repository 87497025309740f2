"""The topology that rank zero logs once: its lines, and by real trainers."""

import re

import pytest

from lightning_sm import Hyperparameters, Launcher, SageMakerEnvironment, Topology, TrainingJob
from lightning_sm._distributed import environment
from lightning_sm._distributed.summary import describe_topology
from lightning_sm._lightning import installed_namespaces
from lightning_sm._sagemaker.job_files import InstanceGroup
from tests.helpers.environ import torchrun
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

_NAMESPACES = installed_namespaces()


@pytest.fixture(autouse=True)
def not_logged_yet(monkeypatch):
    monkeypatch.setattr(environment, "_is_logged", False)


def _hosts(count):
    return tuple(f"algo-{number + 1}" for number in range(count))


def test_all_of_it_as_lines():
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
    backend = "nccl, because the job's distribution is not smdistributed.dataparallel"
    found = describe_topology(job, Topology.resolve(environ, job), 16, "algo-1:7777", backend)
    *lines, versions = found.splitlines()
    assert lines == [
        "topology: job: bert-2026",
        "topology: launcher: torchrun (by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK)",
        "topology: world: 16 processes, 8 on this host, 2 hosts",
        "topology: hosts: algo-1, algo-2",
        "topology: master: algo-1:7777 (by MASTER_ADDR, MASTER_PORT)",
        "topology: backend: nccl, because the job's distribution is not smdistributed.dataparallel",
        "topology: instances: 2 x ml.p4d.24xlarge (8 GPUs on this host)",
    ]
    assert re.match(r"topology: versions: lightning_sm \d.*, Python 3\.\d", versions)


def test_a_parameter_server_is_answered_by_one_line():
    job = TrainingJob(hyperparameters=Hyperparameters(reserved={"sagemaker_parameter_server_enabled": True}))
    found = describe_topology(job, Topology(Launcher.HOST, num_nodes=2), 2)
    (line,) = [line for line in found.splitlines() if "parameter_server" in line]
    assert line.startswith("topology: distribution: parameter_server")
    assert line.endswith("Lightning trains by all-reduce")


def test_groups_that_train_together_are_counted_by_type():
    groups = (
        InstanceGroup("a", "ml.p4d.24xlarge", ("algo-1",)),
        InstanceGroup("b", "ml.p3.16xlarge", ("algo-2", "algo-3")),
        InstanceGroup("not-training", "ml.m5.large", ("algo-4",)),
    )
    job = TrainingJob(
        True, hosts=_hosts(4), instance_groups=groups, current_group_name="a", distribution_groups=("a", "b")
    )
    found = describe_topology(job, Topology(Launcher.HOST, num_nodes=3), 3)
    assert "\ntopology: world: 3 processes, 3 hosts\ntopology: hosts: algo-1, algo-2, algo-3\n" in found
    assert "\ntopology: instances: 1 x ml.p4d.24xlarge, 2 x ml.p3.16xlarge\n" in found
    # Local mode names no groups.
    job = TrainingJob(True, hosts=_hosts(2), current_instance_type="local_gpu")
    assert "\ntopology: instances: 2 x local_gpu\n" in describe_topology(job, Topology(Launcher.HOST), 2)
    many = TrainingJob(hosts=_hosts(100))
    assert "algo-8 and 92 more\n" in describe_topology(many, Topology(Launcher.HOST), 800)


def _fit(namespace, **arguments):
    trainer = namespace.module().Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(tiny_model(namespace.module()), loader())


@pytest.mark.parametrize("namespace", _NAMESPACES, ids=lambda namespace: namespace.name)
@pytest.mark.parametrize("is_given", [True, False])
def test_one_process_on_one_host(in_environ, opt_ml, namespace, is_given):
    in_environ(opt_ml.host("algo-1").environ())
    with log_lines() as lines:
        for _ in range(2):
            _fit(namespace, **({"plugins": [SageMakerEnvironment()]} if is_given else {}))
    (text,) = [line for line in lines if line.startswith("topology: ")]
    assert "\ntopology: world: 1 process, 1 host\n" in f"\n{text}\n"
    assert "backend" not in text
    assert "master" not in text


def test_nothing_on_a_laptop_and_on_other_ranks(in_environ):
    with log_lines() as lines:
        _fit(_NAMESPACES[0])
        SageMakerEnvironment(Topology(Launcher.LOCAL)).log_summary()
        in_environ(torchrun(1, 2, 1, 2, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=1234))
        SageMakerEnvironment().log_summary()
    assert not [line for line in lines if line.startswith("topology")]
