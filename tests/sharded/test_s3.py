"""Two processes whose checkpoints are at s3:// URLs, with a real S3 server on this machine."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.helpers.processes import Job, extended
from tests.helpers.s3 import FailingProxy, s3_server

pytestmark = [pytest.mark.sharded, pytest.mark.timeout(400)]

_SCRIPT = Path(__file__).parent / "train_on_s3.py"
_EPOCH = 4  # steps of two processes
_WHOLE = 3 * _EPOCH
# What is saved by s3torchconnector's S3LightningCheckpoint, and of FSDP2 the shards by its S3StorageWriter.
_BY_CONNECTOR = ("ddp", "fsdp2")


class _Seen(NamedTuple):
    kind: str
    whole: list
    exported: dict
    killed: Job
    names: list
    lost: str
    output: str
    resumed: list
    given: dict


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module", params=["ddp", "fsdp2", extended("deepspeed_3")])
def seen(request, s3, tmp_path_factory):
    """A training that was not interrupted; one that was killed; its restart; and what loads single checkpoints."""
    kind, folder = request.param, tmp_path_factory.mktemp("s3")
    proxy = FailingProxy(s3.port)
    proxy.status = 403
    variables = {**s3.variables, "SM_NUM_GPUS": "0", "TRAINING_JOB_NAME": "job-1", "DENIED": proxy.url}
    if kind in _BY_CONNECTOR:
        pytest.importorskip("s3torchconnector.dcp")
        variables["CONNECTOR"] = "1"

    def job(name, *words):
        temporary = folder / f"{name}-tmp"
        temporary.mkdir()
        return Job(folder / name, _SCRIPT, kind, *words, **variables, TMPDIR=temporary)

    base = f"s3://logs/{kind}"
    whole = job("whole", f"export:{base}/whole").torchrun(1, 2).results(2)
    killed = job("killed", f"{base}/killed={2 * _EPOCH + 2}").torchrun(1, 2)
    prefix = f"{kind}/killed/"
    names = [key[len(prefix) :] for key in s3.names(prefix)]
    (record,) = (name for name in names if name.endswith(f"/step-{2 * _EPOCH}.json"))
    newest = f"{record[: -len('.json')]}.ckpt"
    lost = next((name for name in names if name.startswith(f"{newest}/") and _is_second_shard(name)), "")
    for name in names:
        if name != lost:
            source = {"Bucket": "logs", "Key": prefix + name}
            s3.client.copy_object(Bucket="logs", Key=f"{kind}/half/{name}", CopySource=source)
    # Before the restart replaces what is there.
    loads = {
        "whole": f"given:{base}/killed/{newest}",
        # DeepSpeed's stage 3 cannot load for a test alone: it lacks _restore_from_bit16_weights then.
        "tested": f"test:{base}/killed/{'missing.ckpt' if kind == 'deepspeed_3' else newest}",
        "half": f"given:{base}/half/{newest}",
        "missing": f"given:{base}/killed/missing.ckpt",
        "denied": f"given:{base}/killed/{newest}",
    }
    *first, denied = loads.values()
    restarts = [f"{base}/half"] if lost else []
    if kind == "fsdp2":
        restarts.append(f"refused:{base}/refused")
    restarted = job("restarted", *first, f"{base}/killed", *restarts, "denied", denied).torchrun(1, 2)
    proxy.close()
    results = restarted.results(2)
    given = {key: [each["fits"][index] for each in results] for index, key in enumerate(list(loads)[:-1])}
    given["refused"], given["denied"] = ([each["fits"][index] for each in results] for index in (-2, -1))
    exported = torch.load(folder / "whole" / "exported" / "model.pt", weights_only=True)
    return _Seen(kind, whole, exported, killed, names, lost, restarted.output, results, given)


def _is_second_shard(name):
    return name.rpartition("/")[2].startswith(("__1_", "zero_pp_rank_1"))


def test_a_killed_job_goes_on_as_if_never_interrupted(seen):
    assert set(seen.killed.codes) != {0}
    for whole, resumed in zip(seen.whole, seen.resumed):
        first, again = whole["fits"][0], resumed["fits"][4]
        assert (first["started_at"], first["steps"]) == (0, _WHOLE)
        assert (again["started_at"], again["steps"]) == (2 * _EPOCH, _EPOCH)
        assert again["resumed_from"].endswith(f"/fit-0/step-{2 * _EPOCH}.ckpt")
        assert again["weights"] == first["weights"]
        assert len(set(first["weights"])) > 1


def test_the_manifest_is_uploaded_when_all_shards_are_there(seen):
    if seen.kind == "ddp":
        pytest.skip("an object of S3 appears whole")
    found = seen.whole[0]["before_manifests"]
    folders = {url.rpartition("/")[2] for url in found}
    assert folders >= {f"step-{step}.ckpt" for step in (_EPOCH, 2 * _EPOCH, _WHOLE)}
    for names in found.values():
        assert "manifest.json" not in names
        assert any(_is_second_shard(name) for name in names)
    assert seen.whole[1]["before_manifests"] == {}


def test_a_folder_that_lacks_a_shard_is_rejected_by_name_and_the_older_one_taken(seen):
    if seen.kind == "ddp":
        pytest.skip("an object of S3 appears whole")
    shard = seen.lost.partition("/fit-0/")[2]
    assert f"files cannot be used: {shard} is missing" in seen.output
    for whole, resumed in zip(seen.whole, seen.resumed):
        half = resumed["fits"][5]
        assert (half["started_at"], half["steps"]) == (_EPOCH, 2 * _EPOCH)
        assert half["weights"] == whole["fits"][0]["weights"]


def test_the_best_checkpoint_at_a_url_is_exported(seen):
    best = {number for each in seen.whole for number in each["fits"][0]["after_epochs"][1]}
    last = {number for each in seen.whole for number in each["fits"][0]["after_epochs"][2]}
    exported = {number for value in seen.exported.values() for number in value.flatten().tolist()}
    assert exported <= best
    assert not exported <= last


def test_a_ckpt_path_at_a_url_is_loaded_from_a_copy_on_each_host(seen):
    for whole, given in zip(seen.whole, seen.given["whole"]):
        assert (given["started_at"], given["steps"]) == (2 * _EPOCH, _EPOCH), given
        assert given["weights"] == whole["fits"][0]["weights"]
    if seen.kind != "deepspeed_3":
        one, other = seen.given["tested"]
        assert one == other
        assert one["test_loss"] > 0
    assert seen.output.count(f"Downloading step-{2 * _EPOCH}.ckpt") >= (1 if seen.kind == "ddp" else 2)
    assert [each["left"] for each in seen.resumed] == [[], []]


def test_one_that_is_not_whole_or_not_there_is_an_error_with_a_hint_on_all_ranks(seen):
    errors = {"missing": "There is no checkpoint s3://", "denied": "AccessDenied"}
    if seen.kind != "ddp":
        errors["half"] = f"files cannot be used: {seen.lost.partition('/fit-0/')[2]} is missing"
    for name, words in errors.items():
        first, second = seen.given[name]
        assert words in first, name
        assert "HINT: " in first
        assert "HINT: " in second


def test_shards_that_s3_refuses_are_an_error_on_all_ranks_and_leave_no_manifest(seen, s3):
    if seen.kind != "fsdp2":
        pytest.skip("not saved by S3StorageWriter")
    for error in seen.given["refused"]:
        assert "does not take the shards (S3Exception: Client error: Forbidden" in error
        assert "HINT: The job's role needs s3:ListBucket" in error
    assert [name.rpartition("/")[2] for name in s3.names("fsdp2/refused/")] == ["fit.json"]


def test_what_the_storage_writer_of_s3torchconnector_wrote_is_read_by_its_reader(seen, s3, monkeypatch):
    if seen.kind != "fsdp2":
        pytest.skip("not saved by S3StorageWriter")
    assert [each["uploaded"] for each in seen.whole] == [["manifest.json", "meta.pt"], []]
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    (best,) = {key.rpartition("/")[0] for key in s3.names("fsdp2/whole/best/")}
    reader = S3StorageReader("us-east-1", f"s3://logs/{best}", S3ClientConfig(force_path_style=True))
    state = {"state_dict": {name: torch.zeros_like(value) for name, value in seen.exported.items()}}
    load(state, storage_reader=reader, no_dist=True)
    for name, value in seen.exported.items():
        assert torch.equal(state["state_dict"][name], value)
