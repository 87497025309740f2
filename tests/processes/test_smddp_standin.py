"""Training over the stand-in for AWS's SMDDP, which refuses what AWS documents as unsupported."""

from pathlib import Path

import pytest

from tests.helpers.processes import STANDINS, Job

_SCRIPT = Path(__file__).parent / "train_smddp.py"


def _run(tmp_path_factory, way):
    folder = tmp_path_factory.mktemp(f"smddp_{way}")
    job = Job(folder, _SCRIPT, way, path=[STANDINS], SM_CURRENT_INSTANCE_TYPE="ml.p4d.24xlarge")
    return job.torchrun(1, 2)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return _run(tmp_path_factory, "ours").results(2)


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    return _run(tmp_path_factory, "gloo").results(2)


def test_weights_are_those_of_lightning_over_gloo(ours, gloo):
    for rank in (0, 1):
        assert ours[rank]["weights"] == pytest.approx(gloo[0]["weights"], abs=1e-7)
        assert ours[rank]["tested"] == pytest.approx(gloo[0]["tested"], abs=1e-7)
        assert ours[rank]["backend"] == "smddp"
    assert gloo[0]["backend"] == "gloo"


def test_metrics_of_floats_and_integers_are_those_of_lightning_over_gloo(ours, gloo):
    assert set(gloo[0]["metrics"]) == {"train_loss", "val_loss", "val_count"}
    for rank in (0, 1):
        assert ours[rank]["metrics"] == pytest.approx(gloo[rank]["metrics"], abs=1e-6)


def test_gradients_go_through_the_group_once_per_accumulated_step(ours):
    # Eight batches of two, over two ranks, two of which make a step: two steps and no_sync between.
    reduced = [size for name, dtype, size in ours[0]["calls"] if name == "allreduce" and dtype == "torch.float32"]
    assert reduced.count(ours[0]["parameters"]) == 2


def test_resumes_from_the_checkpoint(ours, gloo):
    assert [result["steps"] for result in (*ours, *gloo)] == [4, 4, 4, 4]
    assert ours[0]["best"] == ours[1]["best"] == gloo[0]["best"]


def test_prepare_data_ran_once_per_host_without_a_further_group(ours, gloo):
    assert [result["prepared"] for result in ours] == [result["prepared"] for result in gloo]
    assert ours[0]["prepared"] > ours[1]["prepared"] == 0


def test_objects_of_every_kind_are_broadcast(ours):
    for result in ours:
        assert result["objects"] == [{"a": [1, None], "b": "é"}, None, "x" * 100_000, 5]
        assert result["from_second"] == "by 1"


def test_tensors_are_gathered_and_reduced(ours, gloo):
    for result in ours:
        assert result["gathered"] == [[0.0, 10.0], [1.0, 10.0]]
        assert result["means"] == [[1.5, 4.0], [2, 4], [1, 8]]
        assert result["all_true"] == [True, False]
    assert gloo[0]["gathered"] == ours[0]["gathered"]
    assert gloo[0]["means"][0] == ours[0]["means"][0]


@pytest.mark.full
def test_lightnings_own_strategy_fails_on_such_a_backend(tmp_path_factory):
    job = _run(tmp_path_factory, "lightnings")
    # Why SMDDPStrategy exists: Lightning makes gloo groups beside the default one, and asks for ReduceOp.AVG.
    assert 0 not in job.codes
    assert None not in job.codes, "it should fail, not hang"
    refusals = ("does not support further process groups (new_group)", "does not support: ReduceOp.AVG")
    assert any(f"SMDDP stand-in: SMDDP {refusal}" in job.output for refusal in refusals), job.output[-4000:]


@pytest.fixture(scope="module")
def normalized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smddp_batchnorm")
    script = _SCRIPT.with_name("train_smddp_batchnorm.py")
    return Job(folder, script, path=[STANDINS], SM_CURRENT_INSTANCE_TYPE="ml.p4d.24xlarge").torchrun(1, 2).results(2)


@pytest.mark.full
def test_batch_norm_over_all_ranks_is_that_of_one_process_over_whole_batches(normalized):
    for result in normalized:
        assert result["layer"] == "CPUSyncBatchNorm"
        assert result["together"]["batches"] == result["alone"]["batches"] == 4
        for key in ("mean", "variance", "weights"):
            assert result["together"][key] == pytest.approx(result["alone"][key], abs=1e-6)


@pytest.mark.full
def test_batch_norm_goes_through_the_group(normalized):
    # Eight channels and four steps: each rank's means, inverse deviations and count forward, two sums backward.
    for result in normalized:
        calls = [(name, size) for name, dtype, size in result["calls"] if dtype == "torch.float32"]
        assert [size for name, size in calls if name in ("allgather", "_allgather_base")] == [17] * 4
        assert calls.count(("allreduce", 16)) == 4
