"""Training on Trn2 over the stand-in for AWS's TorchNeuron, a device of torch's in host memory (``PrivateUse1``)."""

import hashlib
import shutil
from math import isfinite

import pytest
import torch

from tests.helpers.processes import STANDINS, Job
from tests.helpers.skips import installed_version

_LACKS = [
    (shutil.which("g++") is None, "the stand-in for TorchNeuron is compiled by g++"),
    (installed_version("torch") < (2, 4), "the stand-in for TorchNeuron is a device as torch has it from 2.4 on"),
]
pytestmark = [
    pytest.mark.full,
    *(pytest.mark.skipif(lacks, reason=reason) for lacks, reason in _LACKS),
]


@pytest.fixture(scope="module")
def train(tmp_path_factory, pytestconfig):
    """Runs the script in one way in two processes, and returns what each has found."""
    # The device is compiled once for each of its versions and of torch's.
    version = hashlib.sha256((STANDINS / "torch_neuronx" / "device.cpp").read_bytes() + torch.__version__.encode())
    build = pytestconfig.cache.mkdir(f"neuron-standin-{version.hexdigest()[:16]}")

    def run(way):
        variables = {"NEURON_STANDIN_BUILD": build, "SM_NUM_GPUS": 0, "SM_NUM_NEURONS": 2}
        folder, program = tmp_path_factory.mktemp(way), "tests.processes.train_neuron"
        return Job(folder, program, way, path=[STANDINS], timeout=250, **variables).torchrun(1, 2)

    return run


@pytest.fixture(scope="module")
def job(train):
    return train("neuron")


@pytest.fixture(scope="module")
def cpu(train):
    return train("cpu").results(2)


def test_weights_and_metrics_are_those_of_lightning_over_gloo(ranks, cpu):
    for rank in (0, 1):
        assert ranks[rank]["weights"] == cpu[0]["weights"]
        assert ranks[rank]["metrics"] == pytest.approx(cpu[rank]["metrics"], abs=1e-7)
        assert ranks[rank]["tested"] == pytest.approx(cpu[0]["tested"], abs=1e-7)


def test_the_job_chooses_accelerator_strategy_and_the_device_of_each_process(ranks, cpu):
    names = {"accelerator": "NeuronAccelerator", "strategy": "SMDDPStrategy", "size": 2}
    assert [{**names, "device": f"neuron:{rank}"} for rank in (0, 1)] == [
        {name: rank[name] for name in (*names, "device")} for rank in ranks
    ]
    assert cpu[0]["strategy"] == "DDPStrategy"


def test_objects_and_means_go_through_what_is_documented_for_the_backend(ranks):
    for rank in ranks:
        assert rank["objects"] == [{"a": [1, None]}, "x" * 1000]
        assert rank["mean"] == [1.5]
    # The stand-in refuses means and tensors of the CPU. Few lengths, because each is compiled.
    lengths = {length for name, kind, length in ranks[0]["calls"] if kind == "torch.uint8"}
    assert lengths == {2 ** (length - 1).bit_length() for length in lengths} != set()


def test_mixed_precision_casts_and_scales_on_the_device(ranks):
    for rank in ranks:
        assert rank["precisions"]["bf16-mixed"] == ["torch.bfloat16", None]
        assert rank["precisions"]["16-mixed"] == ["torch.float16", [True, "neuron"]]
        assert rank["precisions"]["32-true"] == ["torch.float32", None]


def test_a_resumed_training_draws_the_random_numbers_of_the_device_that_an_uninterrupted_one_draws(job, ranks):
    assert "Resuming within an epoch: epoch 1 after 1 batch" in job.output
    for tries in (rank["tries"] for rank in ranks):
        assert all(map(isfinite, tries["whole"]["weights"]))
        assert tries["stopped"]["steps"] == 6
        assert tries["resumed"] == tries["whole"] != tries["stopped"]
