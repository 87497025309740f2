"""Training by ``torch_xla`` under torchrun, on its CPU: Trn1 without the instance. There it knows one process."""

import importlib.util

import pytest

from tests.helpers.processes import Job

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed"),
]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs the script in one way, in a number of processes, and returns the job."""
    folder = tmp_path_factory.mktemp("xla")

    def run(way, processes=1):
        variables = {"PJRT_DEVICE": "CPU", "SM_NUM_GPUS": 0, "SM_NUM_NEURONS": processes}
        words = (folder / f"{way}-{processes}", "tests.processes.train_xla", way)
        return Job(*words, timeout=250, **variables).torchrun(1, processes)

    return run


@pytest.fixture(scope="module")
def whole(train):
    return train("xla").results(1)[0]


@pytest.fixture(scope="module")
def cpu(train):
    return train("cpu").results(1)[0]


def test_weights_and_metrics_are_those_of_lightning_on_the_cpu(whole, cpu):
    assert whole["weights"] == pytest.approx(cpu["weights"], abs=1e-6)
    assert whole["metrics"] == pytest.approx(cpu["metrics"], abs=1e-5)
    assert whole["tested"] == pytest.approx(cpu["tested"], abs=1e-5)
    names = (whole["accelerator"], whole["strategy"])
    assert names == ("TorchrunXLAAccelerator", "TorchrunXLAStrategy")
    assert whole["objects"] == [{"a": [1, None]}, "x"]


def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(train, whole):
    stopped = train("stopped")
    assert 0 not in stopped.codes
    assert "stopped after step 6" in stopped.output
    resumed = train("resumed")
    assert "Resuming within an epoch: epoch 1 after 2 batches." in resumed.output
    assert "Not restored: the random numbers of the XLA device" in resumed.output
    assert resumed.results(1) == [whole]


def test_processes_that_torch_xla_does_not_take_for_one_world_are_refused(train):
    job = train("xla", 2)
    assert 0 not in job.codes
    assert "torch_xla takes this process for rank 0 of 1 on CPU, and it is rank" in job.output
