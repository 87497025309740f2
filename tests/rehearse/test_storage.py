"""Request bodies that name S3, against an S3 server on this machine."""

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, List

import pytest

from lightning_sm.errors import LaunchError
from lightning_sm.rehearse import RehearsalError, RehearsalRequest, request_from_body
from lightning_sm.rehearse import _storage as storage
from lightning_sm.rehearse._plan import RehearsalFolder
from tests.helpers.rehearsal import needs
from tests.helpers.s3 import S3

BODY = {
    "TrainingJobName": "job-1",
    "HyperParameters": {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://logs/code.tar.gz"},
    "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.xlarge"},
    "OutputDataConfig": {"S3OutputPath": "s3://logs/out/"},
    "CheckpointConfig": {"S3Uri": "s3://logs/checkpoints"},
    "InputDataConfig": [{"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://logs/data"}}}],
}


def request(**changes: Any) -> RehearsalRequest:
    return request_from_body({**BODY, **changes})


def files(folder: Path) -> List[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.full
def test_one_object_is_a_channel_and_none_is_an_error(s3: S3, tmp_path: Path) -> None:
    s3.update({"code.tar.gz": b"c"})
    with pytest.raises(RehearsalError, match=r"s3://logs/data is empty.*HINT.*--channel NAME=PATH"):
        storage.download_inputs(request(), RehearsalFolder(tmp_path))
    s3.update({"data": b"1"})
    fetched = storage.download_inputs(request(), RehearsalFolder(tmp_path))
    assert files(fetched.channels[0].path) == ["data"]


@pytest.mark.full
def test_checkpoints_in_a_bucket_that_launch_would_make(s3: S3, tmp_path: Path) -> None:
    """The default bucket of an account that has sent no job; a channel there is an error still."""
    body = {"HyperParameters": {}, "CheckpointConfig": {"S3Uri": "s3://not-yet/job-1/checkpoints"}}
    assert storage.download_inputs(request(**body, InputDataConfig=[]), RehearsalFolder(tmp_path)).channels == ()
    channel = {"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://not-yet/data"}}}
    with pytest.raises(LaunchError, match="NoSuchBucket"):
        storage.download_inputs(request(**body, InputDataConfig=[channel]), RehearsalFolder(tmp_path))


def test_only_changed_checkpoints_travel(tmp_path: Path) -> None:
    store, leader, worker = (tmp_path / name for name in ("store", "leader", "worker"))
    store.mkdir()
    for name in ("last", "old"):
        (store / name).write_text("1")
    before = {each: storage.fetch_checkpoints(store, each) for each in (leader, worker)}
    (leader / "last").write_text("two")
    (leader / "old").unlink()
    (leader / "sub").mkdir()
    (leader / "sub" / "new").write_text("3")
    for each in (leader, worker):
        storage.send_checkpoints(each, before[each], store)
    assert {name: (store / name).read_text() for name in files(store)} == {"last": "two", "sub/new": "3"}


def test_nothing_in_s3_needs_no_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    local = request(InputDataConfig=[], HyperParameters={}, CheckpointConfig=None, OutputDataConfig=None)
    assert storage.download_inputs(local, RehearsalFolder(tmp_path)) == local
    with pytest.raises(LaunchError, match=r"The package boto3 is missing"):
        storage.download_inputs(request(), RehearsalFolder(tmp_path))


# Reads a channel, continues a checkpoint and writes a model.
GOES_ON = """
import glob, os
assert sorted(glob.glob("**", root_dir=os.environ["SM_CHANNEL_TRAINING"], recursive=True)) == ["1", "sub", "sub/2"]
assert os.listdir("/opt/ml/checkpoints") == ["last"]
with open("/opt/ml/checkpoints/last", "r+") as file:
    assert file.read() == "3"
    file.write("4")
with open(os.path.join(os.environ["SM_MODEL_DIR"], "model"), "w") as file:
    file.write("new")
"""


@pytest.mark.full
@needs("netns")
def test_without_upload_the_bucket_stays_as_it_is(rehearse: Any, s3: S3, source: Path, tmp_path: Path) -> None:
    """With it: ``tests/launch/test_rehearsed.py``."""
    before = {"data/1": b"1", "data/sub/2": b"2", "data/": b"", "checkpoints/last": b"3"}
    before.update({"checkpoints-10/last": b"another job's", "out/job-1/output/model.tar.gz": b"mine"})
    s3.update(before)
    source.joinpath("goes_on.py").write_text(GOES_ON)
    body = {**BODY, "HyperParameters": {"sagemaker_program": "goes_on.py"}}
    (tmp_path / "body.json").write_text(json.dumps(body))
    done = rehearse("--request", tmp_path / "body.json", "--no-requirements", **s3.variables)
    collected = Path(done.summary["collected"])
    assert {key: s3[key] for key in before} == before
    assert files(collected) == ["checkpoints/last", "model.tar.gz"]
    assert (collected / "checkpoints" / "last").read_text() == "34"
    with tarfile.open(collected / "model.tar.gz") as archive:
        assert archive.getnames() == ["model"]
    shutil.rmtree(collected)
