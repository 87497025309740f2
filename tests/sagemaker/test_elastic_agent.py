"""The variables that HyperPod's agent sets for a worker, all of them as version 1.1.3 sets them."""

import json

import pytest

from lightning_sm._sagemaker.elastic_agent import ElasticAgent
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import JobConfigError


def hyperpod(group_rank=1, local_rank=1, nodes=2, local_size=2, **more):
    """A worker's variables: ``HyperPodElasticAgent._start_workers``."""
    rank = group_rank * local_size + local_rank
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(group_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(local_size),
        "WORLD_SIZE": str(nodes * local_size),
        "GROUP_WORLD_SIZE": str(nodes * local_size),
        "ROLE_WORLD_SIZE": str(nodes * local_size),
        "MASTER_ADDR": "10.0.3.17",
        "MASTER_PORT": "23456",
        "JOB_RESTART_COUNT": "3",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH": "/tmp/hyperpod_elastic_agent_7.sock",
        "HYPERPOD_SIGNAL_COORDINATION": "distributed",
        **more,
    }


def test_what_the_agent_says():
    assert ElasticAgent.resolve(hyperpod()) == ElasticAgent("/tmp/hyperpod_elastic_agent_7.sock", "distributed", 3)
    assert not ElasticAgent.resolve(hyperpod(HYPERPOD_SIGNAL_COORDINATION="disabled")).has_events
    assert ElasticAgent.resolve({"TORCHELASTIC_RUN_ID": "none", "JOB_RESTART_COUNT": "3"}) is None
    with pytest.raises(JobConfigError, match="JOB_RESTART_COUNT"):
        ElasticAgent.resolve(hyperpod(JOB_RESTART_COUNT="often"))


def test_the_topology_of_two_pods_with_two_processes_each():
    """The agent's GROUP_WORLD_SIZE counts processes, not hosts."""
    topology = Topology.resolve(hyperpod(), TrainingJob())
    assert topology.launcher == Launcher.TORCHRUN
    assert (topology.global_rank, topology.world_size, topology.local_rank, topology.local_world_size) == (3, 4, 1, 2)
    assert (topology.node_rank, topology.num_nodes) == (1, 2)
    assert (topology.main_address, topology.main_port) == ("10.0.3.17", 23456)


@pytest.mark.parametrize(("nodes", "local_size"), [(1, 1), (1, 8), (2, 1), (8, 8)])
def test_pods_are_counted_whatever_their_size(nodes, local_size):
    variables = hyperpod(nodes - 1, local_size - 1, nodes, local_size)
    topology = Topology.resolve(variables, TrainingJob())
    assert (topology.node_rank, topology.num_nodes) == (nodes - 1, nodes)


def test_a_pod_is_no_training_container(tmp_path):
    """The agent writes a file into SageMaker's folder, which names the addresses of the pods and nothing else."""
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    content = {"ips": ["10.0.3.17", "10.0.3.18"], "current_pod_ip": "10.0.3.18", "ips_timestamp": "1"}
    (folder / "pod_resourceconfig.json").write_text(json.dumps(content))
    job = TrainingJob.resolve({**hyperpod(), "SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert not job.in_container
    assert job.hosts == ()
    assert job.failure_file is None
