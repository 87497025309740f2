"""``SMPFSDPStrategy`` over the stand-in for AWS's ``torch.sagemaker``: the weights are those of plain Lightning."""

from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    script = Path(__file__).parent / "train_smp_fsdp.py"
    return Job(tmp_path_factory.mktemp("smp_fsdp"), script, timeout=400).torchrun(1, 2).results(2)


@pytest.mark.parametrize(("case", "replicas"), [("plain", 2), ("tensor", 1)])
def test_weights_are_those_of_plain_lightning(ranks, case, replicas):
    from tests.helpers.smp import fit_plain

    plain = fit_plain(8, gradient_clip_val=0.05)["weights"]
    for rank, found in enumerate(each[case] for each in ranks):
        assert found["sampler"] == {"num_replicas": replicas, "rank": rank % replicas}
        assert found["weights"]
        for name, numbers in found["weights"].items():
            assert numbers == pytest.approx(plain[f"net.{name}"], abs=1e-6), name


def test_the_steps_are_those_of_aws(ranks):
    for found in ranks:
        assert found["plain"]["calls"] == [["init"]] + [["clip_grad_norm_", 0.05]] * 12
        assert found["tensor"]["calls"][:2] == [["init"], ["transform", "Sequential", None]]
        assert found["meta"]["calls"][:2] == [["init"], ["DelayedParamIniter"]]
        assert ["post_param_init"] in found["meta"]["calls"]
        assert found["meta"]["calls"][-7] == ["validated"]
        assert all(numbers for numbers in found["meta"]["weights"].values())


def test_what_torchs_checkpoints_cannot_hold_is_refused_by_name(ranks):
    for found in ranks:
        assert found["plain"]["saved"] == found["meta"]["saved"] == "a file"
        for error in (found["tensor"]["saved"], found["early"]):
            assert "tensor_parallel_degree=2" in error
            assert "torch.sagemaker.distributed.checkpoint" in error
