"""Two processes whose checkpoints are at s3:// URLs, with a real S3 server on this machine."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.processes import Job
from tests.helpers.s3 import s3_server

pytestmark = [pytest.mark.sharded, pytest.mark.timeout(400)]

_SCRIPT = Path(__file__).parent / "train_on_s3.py"
_EPOCH = 4  # steps of two processes
_WHOLE = 3 * _EPOCH


class _Seen(NamedTuple):
    kind: str
    whole: list
    killed: Job
    names: list
    lost: str
    output: str
    resumed: list


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module", params=["ddp", "fsdp2", "deepspeed_3"])
def seen(request, s3, tmp_path_factory):
    """A training that was not interrupted; one that was killed; its restart; and one where a shard is missing."""
    kind, folder = request.param, tmp_path_factory.mktemp("s3")

    def job(name, *urls):
        variables = {**s3.variables, "SM_NUM_GPUS": "0", "TRAINING_JOB_NAME": "job-1"}
        return Job(folder / name, _SCRIPT, kind, *(f"s3://logs/{kind}/{url}" for url in urls), **variables)

    whole = job("whole", "whole").torchrun(1, 2).results(2)
    killed = job("killed", f"killed={2 * _EPOCH + 2}").torchrun(1, 2)
    prefix = f"{kind}/killed/"
    names = [key[len(prefix) :] for key in s3.names(prefix)]
    lost = next((each for each in names if f"step={2 * _EPOCH}" in each and _is_second_shard(each)), "")
    for name in names:
        if name != lost:
            source = {"Bucket": "logs", "Key": prefix + name}
            s3.client.copy_object(Bucket="logs", Key=f"{kind}/half/{name}", CopySource=source)
    restarted = job("restarted", "killed", *(["half"] if lost else [])).torchrun(1, 2)
    return _Seen(kind, whole, killed, names, lost, restarted.output, restarted.results(2))


def _is_second_shard(name):
    return name.rpartition("/")[2].startswith(("__1_", "zero_pp_rank_1"))


def test_a_killed_job_goes_on_as_if_never_interrupted(seen):
    assert set(seen.killed.codes) != {0}
    for whole, resumed in zip(seen.whole, seen.resumed):
        first, again = whole["fits"][0], resumed["fits"][0]
        assert (first["started_at"], first["steps"]) == (0, _WHOLE)
        assert (again["started_at"], again["steps"]) == (2 * _EPOCH, _EPOCH)
        assert again["resumed_from"].startswith("last")
        assert again["weights"] == first["weights"]
        assert len(set(first["weights"])) > 1


def test_the_manifest_is_uploaded_when_all_shards_are_there(seen):
    if seen.kind == "ddp":
        assert seen.names == ["last.ckpt"]
        return
    found = seen.whole[0]["before_manifests"]
    folders = {url.rpartition("/")[2] for url in found}
    assert folders >= {"last-epoch=0-step=4.ckpt", "last-epoch=1-step=8.ckpt"}
    for names in found.values():
        assert "manifest.json" not in names
        assert any(_is_second_shard(name) for name in names)
    assert seen.whole[1]["before_manifests"] == {}


def test_a_folder_that_lacks_a_shard_is_rejected_by_name_and_the_older_one_taken(seen):
    if seen.kind == "ddp":
        pytest.skip("an object of S3 appears whole")
    newest, _, shard = seen.lost.partition("/")
    assert f"Rejected {newest}: it is incomplete" in seen.output
    assert shard in seen.output
    for whole, resumed in zip(seen.whole, seen.resumed):
        half = resumed["fits"][1]
        assert (half["started_at"], half["steps"]) == (_EPOCH, 2 * _EPOCH)
        assert half["weights"] == whole["fits"][0]["weights"]
