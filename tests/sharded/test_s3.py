"""Two processes with FSDP2 whose checkpoints are at s3:// URLs, with a real S3 server on this machine.

They are saved by s3torchconnector: S3LightningCheckpoint, and its S3StorageWriter for the shards.
"""

from typing import NamedTuple

import pytest
import torch

from tests.helpers.processes import Job
from tests.helpers.s3 import FailingProxy

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

_EPOCH = 4  # steps of two processes
_WHOLE = 3 * _EPOCH


class _Seen(NamedTuple):
    whole: list
    exported: dict
    killed: Job
    lost: str
    restarted: Job
    found: dict


@pytest.fixture(scope="module")
def seen(s3_of_module, tmp_path_factory):
    """A training that was not interrupted; one that was killed; its restart; and what loads single checkpoints."""
    pytest.importorskip("s3torchconnector.dcp")
    folder = tmp_path_factory.mktemp("s3")
    proxy = FailingProxy(s3_of_module.port)
    proxy.status = 403
    variables = {**s3_of_module.variables, "SM_NUM_GPUS": "0", "TRAINING_JOB_NAME": "job-1", "DENIED": proxy.url}

    def job(name, *words):
        temporary = folder / f"{name}-tmp"
        temporary.mkdir()
        return Job(folder / name, "tests.sharded.train_on_s3", *words, **variables, TMPDIR=temporary)

    base = "s3://logs/job"
    whole = job("whole", f"export:{base}/whole").torchrun(1, 2).results(2)
    killed = job("killed", f"{base}/killed={2 * _EPOCH + 2}").torchrun(1, 2)
    prefix = "job/killed/"
    names = [key[len(prefix) :] for key in s3_of_module.names(prefix)]
    (record,) = (name for name in names if name.endswith(f"/step-{2 * _EPOCH}.json"))
    newest = f"{record[: -len('.json')]}.ckpt"
    lost = next(name for name in names if name.startswith(f"{newest}/") and _is_second_shard(name))
    for name in names:
        if name != lost:
            source = {"Bucket": "logs", "Key": prefix + name}
            s3_of_module.client.copy_object(Bucket="logs", Key=f"job/half/{name}", CopySource=source)
    # Before the restart replaces what is there.
    fits = {
        "given": f"given:{base}/killed/{newest}",
        "given half": f"given:{base}/half/{newest}",
        "resumed": f"{base}/killed",
        "resumed half": f"{base}/half",
        "refused": f"refused:{base}/refused",
    }
    restarted = job("restarted", *fits.values()).torchrun(1, 2)
    proxy.close()
    results = restarted.results(2)
    found = {key: [each["fits"][index] for each in results] for index, key in enumerate(fits)}
    found["left"] = [each["left"] for each in results]
    exported = torch.load(folder / "whole" / "exported" / "model.pt", weights_only=True)
    return _Seen(whole, exported, killed, lost, restarted, found)


def _is_second_shard(name):
    return name.rpartition("/")[2].startswith("__1_")


def test_a_killed_job_goes_on_as_if_never_interrupted(seen):
    assert set(seen.killed.codes) != {0}
    # From the newest; from the older one where that lacks a shard; and from a ckpt_path, a copy on each host.
    starts = {"resumed": 2 * _EPOCH, "resumed half": _EPOCH, "given": 2 * _EPOCH}
    for name, start in starts.items():
        for whole, again in zip((each["fits"][0] for each in seen.whole), seen.found[name]):
            assert (whole["started_at"], whole["steps"]) == (0, _WHOLE)
            assert (again["started_at"], again["steps"]) == (start, _WHOLE - start), (name, again)
            assert again["weights"] == whole["weights"]
            assert len(set(whole["weights"])) > 1
    for again in seen.found["resumed"]:
        assert again["resumed_from"].endswith(f"/fit-0/step-{2 * _EPOCH}.ckpt")
    assert seen.restarted.output.count(f"Downloading step-{2 * _EPOCH}.ckpt") >= 2
    assert seen.found["left"] == [[], []]


def test_the_manifest_is_uploaded_when_all_shards_are_there(seen):
    first, second = (each["before_manifests"] for each in seen.whole)
    folders = {url.rpartition("/")[2] for url in first}
    assert folders >= {f"step-{step}.ckpt" for step in (_EPOCH, 2 * _EPOCH, _WHOLE)}
    for names in first.values():
        assert "manifest.json" not in names
        assert any(_is_second_shard(name) for name in names)
    assert second == {}


def test_a_folder_that_lacks_a_shard_is_rejected_by_name(seen):
    problem = f"files cannot be used: {seen.lost.partition('/fit-0/')[2]} is missing"
    assert problem in seen.restarted.output
    # As a ckpt_path it is an error on all ranks.
    first, second = seen.found["given half"]
    assert problem in first
    assert "HINT: " in first
    assert "HINT: " in second


def test_the_best_checkpoint_at_a_url_is_exported(seen):
    (_, best, last) = (
        {number for weights in epoch for number in weights}
        for epoch in zip(*(each["fits"][0]["after_epochs"] for each in seen.whole))
    )
    exported = {number for value in seen.exported.values() for number in value.flatten().tolist()}
    assert exported <= best
    assert not exported <= last


def test_shards_that_s3_refuses_are_an_error_on_all_ranks_and_leave_no_manifest(seen, s3_of_module):
    for error in seen.found["refused"]:
        assert "does not take the shards (S3Exception: Client error: Forbidden" in error
        assert "HINT: The job's role needs s3:ListBucket" in error
    assert [name.rpartition("/")[2] for name in s3_of_module.names("job/refused/")] == ["fit.json"]


def test_what_the_storage_writer_of_s3torchconnector_wrote_is_read_by_its_reader(seen, s3_of_module, monkeypatch):
    assert [each["uploaded"] for each in seen.whole] == [["manifest.json", "meta.pt"], []]
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    for name, value in s3_of_module.variables.items():
        monkeypatch.setenv(name, value)
    (best,) = {key.rpartition("/")[0] for key in s3_of_module.names("job/whole/best/")}
    reader = S3StorageReader("us-east-1", f"s3://logs/{best}", S3ClientConfig(force_path_style=True))
    state = {"state_dict": {name: torch.zeros_like(value) for name, value in seen.exported.items()}}
    load(state, storage_reader=reader, no_dist=True)
    for name, value in seen.exported.items():
        assert torch.equal(state["state_dict"][name], value)
