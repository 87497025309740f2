"""Training on Trn2 over the stand-in for AWS's TorchNeuron, a device of torch's in host memory (``PrivateUse1``)."""

import shutil
from math import isfinite
from pathlib import Path

import pytest

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

_SCRIPT = Path(__file__).parent / "train_neuron.py"


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs the script in one way, in a number of processes, and returns the job."""
    folder = tmp_path_factory.mktemp("neuron")

    def run(way, processes):
        job = Job(
            folder / f"job-{way}",
            _SCRIPT,
            way,
            path=[STANDINS],
            NEURON_STANDIN_BUILD=folder,
            SM_NUM_GPUS=0,
            SM_NUM_NEURONS=processes,
            timeout=250,
        )
        return job.torchrun(1, processes)

    return run


@pytest.fixture(scope="module")
def ranks(train):
    return train("neuron", 2).results(2)


@pytest.fixture(scope="module")
def cpu(train):
    return train("cpu", 2).results(2)


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


def test_mixed_precision_casts_and_scales_on_the_device(train):
    (seen,) = train("precision", 1).results(1)
    assert seen["bf16-mixed"] == ["torch.bfloat16", None]
    assert seen["16-mixed"] == ["torch.float16", [True, "neuron"]]
    assert seen["32-true"] == ["torch.float32", None]


def test_a_resumed_training_draws_the_random_numbers_of_the_device_that_an_uninterrupted_one_draws(train):
    (whole,) = train("whole", 1).results(1)
    stopped = train("stopped", 1)
    assert 0 not in stopped.codes
    assert "stopped after step 6" in stopped.output
    resumed = train("resumed", 1)
    (rank,) = resumed.results(1)
    assert "Resuming fit" in resumed.output
    assert all(map(isfinite, whole["weights"]))
    assert (rank["weights"], rank["steps"], rank["device"]) == (whole["weights"], whole["steps"], "neuron:0")
