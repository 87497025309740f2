"""FSDP, FSDP2 and DeepSpeed by our strategies in real processes: over gloo and over the stand-in for SMDDP."""

import pytest

from tests.helpers.processes import STANDINS, Job, assert_equal

pytest.importorskip("deepspeed")
pytest.importorskip("torch.distributed.fsdp", reason="torch has no FSDP")
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

_KINDS = ("fsdp", "fsdp2", "deepspeed_2", "deepspeed_3")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """By mpirun, which starts the ranks of SMDDP and sets no variables of torch's."""
    words = ("tests.sharded.train_strategies", "ddp,fsdp", ",".join(_KINDS))
    variables = {"path": [STANDINS], "SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge", "timeout": 280}
    return Job(tmp_path_factory.mktemp("strategies"), *words, **variables).mpirun(2)


@pytest.fixture(scope="module")
def gloo(ranks):
    """SMDDPStrategy as the truth, and one that shards, over gloo."""
    return [rank["gloo"] for rank in ranks]


@pytest.fixture(scope="module")
def smddp(ranks):
    """Our sharded strategies over the stand-in."""
    return [rank["smddp"] for rank in ranks]


def _is_like_ddp(results, kind, ddp):
    for rank in (0, 1):
        assert set(results[rank][kind]["metrics"]) == {"train_loss", "val_loss", "val_count"}
        assert results[rank][kind]["metrics"] == pytest.approx(ddp[rank]["ddp"]["metrics"], abs=1e-6)
        assert results[rank][kind]["sampler"] == {"num_replicas": 2, "rank": rank}
        assert_equal(results[rank][kind]["weights"], ddp[rank]["ddp"]["weights"], abs=1e-6)
        assert [len(values) for values in results[rank][kind]["weights"].values()] == [32, 8, 8, 1]


def test_losses_and_weights_over_gloo_are_those_of_ddp(gloo):
    _is_like_ddp(gloo, "fsdp", gloo)
    assert {found["backend"] for result in gloo for found in result.values()} == {"gloo"}


@pytest.mark.parametrize("kind", _KINDS)
def test_losses_and_weights_over_the_standin_are_those_of_ddp(smddp, gloo, kind):
    _is_like_ddp(smddp, kind, gloo)
    for result in (each[kind] for each in smddp):
        assert result["backend"] == "smddp"
        assert result["object"] == {"rank": 1}
        assert result["optimize_sdp"] == "true"
        # DeepSpeed's variables are those of the same world.
        assert result["topology"] == "2"
        names = {name for name, _, _ in result["calls"]}
        if kind != "deepspeed_2":
            assert "_reduce_scatter_base" in names
            assert names & {"_allgather_base", "allgather"}
        if kind.startswith("fsdp"):
            # Of 49 numbers.
            assert result["own"] < 33, "each rank holds about a half"
            # FSDP2's dimension over all processes is the default group, and each process a tensor parallel group.
            groups = {backend for name, backend, _ in result["calls"] if name == "new_group"}
            assert groups <= ({"smddp"} if kind == "fsdp2" else set())


# --- SMPFSDPStrategy over the stand-in for AWS's torch.sagemaker


@pytest.mark.parametrize(("case", "replicas"), [("plain", 2), ("tensor", 1)])
def test_weights_with_smp_v2_are_those_of_plain_lightning(ranks, case, replicas):
    from tests.helpers.smp import fit_plain

    plain = fit_plain(8, gradient_clip_val=0.05)["weights"]
    for rank, found in enumerate(each["smp"][case] for each in ranks):
        assert found["sampler"] == {"num_replicas": replicas, "rank": rank % replicas}
        assert found["weights"]
        for name, numbers in found["weights"].items():
            assert numbers == pytest.approx(plain[f"net.{name}"], abs=1e-6), name


def test_the_steps_with_smp_v2_are_those_of_aws(ranks):
    for found in (each["smp"] for each in ranks):
        assert found["plain"]["calls"] == [["init"]] + [["clip_grad_norm_", 0.05]] * 12
        assert found["tensor"]["calls"][:2] == [["init"], ["transform", "Sequential", None]]
        assert found["meta"]["calls"][:2] == [["init"], ["DelayedParamIniter"]]
        assert ["post_param_init"] in found["meta"]["calls"]
        assert found["meta"]["calls"][-7] == ["validated"]
        assert all(numbers for numbers in found["meta"]["weights"].values())


def test_what_torchs_checkpoints_cannot_hold_is_refused_by_name(ranks):
    for found in (each["smp"] for each in ranks):
        assert found["plain"]["saved"] == found["meta"]["saved"] == "a file"
        for error in (found["tensor"]["saved"], found["early"]):
            assert "tensor_parallel_degree=2" in error
            assert "torch.sagemaker.distributed.checkpoint" in error
