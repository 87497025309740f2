import pytest

from lightning_sm._failure.address import job_address
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology


def address(opt_ml, port=7777, **hyperparameters):
    opt_ml.hyperparameters(sagemaker_job_name="job-1", **hyperparameters)
    job = TrainingJob.resolve(opt_ml.environ())
    return job_address(job, Topology("torchrun", main_address="algo-1", main_port=port, num_nodes=2))


def test_all_hosts_of_a_job_know_the_same(opt_ml, in_environ):
    first = address(opt_ml.host("algo-1", "algo-1", "algo-2"))
    assert first.ports == (7778, 7779, 7780, 7781)
    assert (first.host, first.num_nodes) == ("algo-1", 2)
    assert address(opt_ml.host("algo-2", "algo-1", "algo-2")) == first
    assert address(opt_ml.host("algo-1", "algo-1", "algo-3")).token != first.token
    opt_ml.host("algo-1", "algo-1", "algo-2")
    assert address(opt_ml, sagemaker_region="eu-west-1").token != first.token

    # Each host's agent counts the restarts of its own workers.
    in_environ({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert address(opt_ml) == first


@pytest.mark.parametrize("port", [1, 65531, 65534, 65535])
def test_there_are_ports_beside_every_port(opt_ml, port):
    ports = address(opt_ml.host("algo-1"), port=port).ports
    assert len({*ports, port}) == 5
    assert all(0 < each < 65536 for each in ports)
