"""Checkpoint folders of FSDP, FSDP2 and DeepSpeed on two processes, on one host and on two."""

import os
import subprocess
import sys

import pytest

from tests.helpers.processes import Job, local_rendezvous
from tests.helpers.sharded import runs_here

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

STAGES = {"deepspeed_2": "deepspeed_stage_2", "deepspeed_3": "deepspeed_stage_3"}
KINDS = [kind for kind in ("fsdp", "fsdp2", *STAGES) if runs_here(kind)]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One job trains with all kinds."""
    words = ("tests.sharded.save_folders", ",".join(KINDS))
    return Job(tmp_path_factory.mktemp("saves"), *words, timeout=400).torchrun(1, 2)


@pytest.fixture(params=KINDS)
def saved(request, ranks):
    """What the two ranks found with a kind of strategy, whose name is Lightning's."""
    kind = request.param
    return STAGES.get(kind, kind), *(rank[kind] for rank in ranks)


def test_each_way_to_save_leaves_whole_folders_of_which_none_is_seen_before(saved):
    strategy, first, second = saved
    assert second["ways"]["watched"]["looks"] > 100
    assert second["ways"]["watched"]["broken"] == []
    found = first["ways"]
    assert found["names"] == ["best-step=10.ckpt", "last.ckpt", "own.ckpt", "time-step=10.ckpt"]
    assert found["best"] == "best-step=10.ckpt"
    assert set(found["problems"].values()) == {None}
    # Two of the series are kept, with their records.
    assert found["series"] == ["fit.json", "step-10.ckpt", "step-10.json", "step-9.ckpt", "step-9.json"]
    assert all(found["intact"])
    records = [*found["manifests"].values(), *found["records"]]
    assert {(each["strategy"], each["world_size"]) for each in records} == {(strategy, 2)}
    assert len(records) == 6 + 2


def test_what_a_rank_cannot_write_is_an_error_on_all_ranks(saved):
    for found in (rank["one_rank"] for rank in saved[1:]):
        assert "step=4.ckpt could not be saved (global_rank 1" in found["error"]
        assert "An older one is unchanged. HINT: Check the free space" in found["error"]
        assert found["problem"] is None
    # Global rank 0 has removed what was incomplete when its error is raised.
    assert saved[1]["one_rank"]["names"] == ["step=2.ckpt"]


def test_training_goes_on_while_a_thread_copies(saved):
    found = saved[1]["async"]
    assert found["seen"]["steps"] >= 5  # the checkpoint of step 3 is not visible yet
    assert all(name.startswith(".step=3.ckpt.partial-") for name in found["seen"]["visible"])
    assert found["names"] == ["step=9.ckpt"]
    assert found["problem"] is None
    assert found["memory"] == []


def test_each_host_has_its_own_shards_and_removes_its_own_only(tmp_path):
    """Two hosts with mounts of their own, which see different directories under one path."""
    start = 'mount --bind {0} {1} && mount -t tmpfs tmpfs /dev/shm && shift && exec "$@"'
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this process may not have mounts of its own")
    shared = tmp_path / "checkpoints"
    shared.mkdir()
    job = Job(tmp_path / "job", "tests.sharded.save_on_hosts", "fsdp2", shared, tmp_path)
    rendezvous, starts = local_rendezvous(), []
    for number, host in enumerate(job._hosts(2)):
        own = tmp_path / f"host-{number}"
        own.mkdir()
        torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", *rendezvous]
        shell = ["unshare", "-m", "sh", "-c", start.format(own, shared), "sh", "-"]
        starts.append(([*shell, sys.executable, *torchrun, "--node_rank", str(number)], host))
    ranks = job._finish(starts, python=False).results(2)
    assert os.listdir(shared) == []
    for case in ("now", "async"):
        first, second = (rank[case] for rank in ranks)
        assert first["names"] == second["names"] == ["last.ckpt", "step=4.ckpt"]  # that of step 2 is gone on both
        assert first["manifest"] == second["manifest"]
        listed = {file["name"] for file in first["manifest"]["files"]}
        assert set(first["shards"]) | set(second["shards"]) == listed | {"manifest.json"}
        assert set(first["shards"]) & set(second["shards"]) == {"manifest.json"}
    # SageMaker would delete in S3 what a host deletes, which the other one may have uploaded anew.
    others = [["__1_0.distcp"], [".metadata", "__0_0.distcp", "meta.pt"]]
    for rank, of_other in zip(ranks, others):
        for case in ("now", "async"):
            found = rank[case]
            assert found["others"] == found["unchanged"] == of_other
            assert set(found["files"]) == listed | {"manifest.json"}
            assert {problem.split()[0] for problem in found["problems"]} <= set(of_other)
            assert f"__{1 - ranks.index(rank)}_0.distcp" in str(found["problems"])
