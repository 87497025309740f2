"""Training over the stand-in for AWS's SMDDP, which refuses what AWS documents as unsupported."""

import pytest

from tests.helpers.processes import STANDINS, Job
from tests.helpers.skips import installed_version


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    variables = {"path": [STANDINS], "SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge"}
    return Job(tmp_path_factory.mktemp("smddp"), "tests.processes.train_smddp", **variables).torchrun(1, 2)


@pytest.fixture(scope="module")
def ours(ranks):
    return [rank["smddp"] for rank in ranks]


@pytest.fixture(scope="module")
def gloo(ranks):
    return [rank["gloo"] for rank in ranks]


def test_weights_and_metrics_are_those_of_lightning_over_gloo(ours, gloo):
    assert {result["backend"] for result in gloo} == {"gloo"}
    # Of floats and of integers.
    assert set(gloo[0]["metrics"]) == {"train_loss", "val_loss", "val_count"}
    for found, expected in zip(ours, gloo):
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-7)
        assert found["tested"] == pytest.approx(expected["tested"], abs=1e-7)
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
        # It went on from the last checkpoint.
        assert found["steps"] == expected["steps"] == 4
        assert found["best"] == expected["best"]
        assert found["backend"] == "smddp"


def test_gradients_go_through_the_group_once_per_accumulated_step(ours):
    # Eight batches of two, over two ranks, two of which make a step: two steps and no_sync between.
    reduced = [size for name, dtype, size in ours[0]["calls"] if name == "allreduce" and dtype == "torch.float32"]
    assert reduced.count(ours[0]["parameters"]) == 2


def test_prepare_data_ran_once_per_host_without_a_further_group(ours, gloo):
    assert [result["prepared"] for result in ours] == [result["prepared"] for result in gloo]
    assert ours[0]["prepared"] > ours[1]["prepared"] == 0


def test_objects_and_tensors_are_broadcast_gathered_and_reduced(ours, gloo):
    for result in ours:
        assert result["objects"] == [{"a": [1, None], "b": "é"}, None, "x" * 100_000, 5]
        assert result["from_second"] == "by 1"
        assert result["gathered"] == [[0.0, 10.0], [1.0, 10.0]]
        assert result["means"] == [[1.5, 4.0], [2, 4], [1, 8]]
        assert result["all_true"] == [True, False]
    assert gloo[0]["gathered"] == ours[0]["gathered"]
    assert gloo[0]["means"][0] == ours[0]["means"][0]


@pytest.mark.skipif(installed_version("torch") < (2, 0), reason="the kernels are written out for torch 2")
def test_batch_norm_over_all_ranks_is_that_of_one_process_over_whole_batches(ranks):
    for found, alone in ((rank["normalized"], rank["alone"]) for rank in ranks):
        assert found["layer"] == "CPUSyncBatchNorm"
        assert found["batches"] == alone["batches"] == 4
        for key in ("mean", "variance", "weights"):
            assert found[key] == pytest.approx(alone[key], abs=1e-6)
        # Eight channels and four steps: each rank's means, inverse deviations and count forward, two sums backward.
        calls = [(name, size) for name, dtype, size in found["calls"] if dtype == "torch.float32"]
        assert [size for name, size in calls if name in ("allgather", "_allgather_base")] == [17] * 4
        assert calls.count(("allreduce", 16)) == 4
