"""Request bodies that name S3, against a stand-in for boto3's client that keeps its objects in a dictionary."""

import importlib
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from lightning_sm.rehearse import RehearsalError, RehearsalRequest, request_from_body
from lightning_sm.rehearse import _storage as s3
from lightning_sm.rehearse._plan import RehearsalFolder


class FakeS3:
    """The four calls that are used, for one bucket."""

    def __init__(self, objects: Dict[str, bytes]) -> None:
        self.objects = objects

    def get_paginator(self, name: str) -> "FakeS3":
        assert name == "list_objects_v2"
        return self

    def paginate(self, Bucket: str, Prefix: str) -> Iterator[Dict[str, Any]]:
        keys = [key for key in self.objects if key.startswith(Prefix)]
        # A page for each object, and the page without any that S3 sends for an empty prefix.
        yield from ({"Contents": [{"Key": key}]} for key in keys)
        yield {}

    def download_file(self, bucket: str, key: str, path: str) -> None:
        Path(path).write_bytes(self.objects[key])

    def upload_file(self, path: str, bucket: str, key: str) -> None:
        self.objects[key] = Path(path).read_bytes()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Dict[str, bytes]:
    objects: Dict[str, bytes] = {}
    monkeypatch.setattr(s3, "_client", lambda: FakeS3(objects))
    return objects


def request(**changes: Any) -> RehearsalRequest:
    body = {
        "TrainingJobName": "job-1",
        "HyperParameters": {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://bucket/code.tar.gz"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.xlarge"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
        "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints"},
        "InputDataConfig": [
            {"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/data"}}},
        ],
    }
    return request_from_body({**body, **changes})


def files(folder: Path) -> List[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_inputs_come_and_results_go(bucket: Dict[str, bytes], tmp_path: Path) -> None:
    bucket.update({"code.tar.gz": b"c", "data/1": b"1", "data/sub/2": b"2", "data/": b"", "checkpoints/last": b"3"})
    tree = RehearsalFolder(tmp_path / "tree")
    fetched = s3.download_inputs(request(), tree)
    assert tree.archive.read_bytes() == b"c"
    assert files(fetched.channels[0].path) == ["1", "sub/2"]
    assert fetched.checkpoint_dir is not None
    assert files(fetched.checkpoint_dir) == ["last"]

    (fetched.checkpoint_dir / "last").write_bytes(b"4")
    tree.collected.mkdir()
    (tree.collected / "model.tar.gz").write_bytes(b"m")
    assert s3.upload_results(fetched, tree) == "s3://bucket/out/job-1/output"
    assert bucket["out/job-1/output/model.tar.gz"] == b"m"
    assert bucket["checkpoints/last"] == b"4"


def test_one_object_is_a_channel_too(bucket: Dict[str, bytes], tmp_path: Path) -> None:
    bucket.update({"code.tar.gz": b"c", "data": b"1"})
    fetched = s3.download_inputs(request(), RehearsalFolder(tmp_path))
    assert files(fetched.channels[0].path) == ["data"]


def test_an_empty_channel_is_refused(bucket: Dict[str, bytes], tmp_path: Path) -> None:
    bucket["code.tar.gz"] = b"c"
    with pytest.raises(RehearsalError, match="s3://bucket/data is empty"):
        s3.download_inputs(request(), RehearsalFolder(tmp_path))


def test_v3_drivers_tell_their_launcher(bucket: Dict[str, bytes], tmp_path: Path) -> None:
    bucket["drivers/sm_train.sh"] = b"$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/mpi_driver.py\n"
    channel = {"ChannelName": "sm_drivers", "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/drivers"}}}
    made = request(InputDataConfig=[channel], HyperParameters={}, CheckpointConfig=None)
    assert s3.download_inputs(made, RehearsalFolder(tmp_path)).distribution == "mpi"


def test_nothing_in_s3_needs_no_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    local = request(InputDataConfig=[], HyperParameters={}, CheckpointConfig=None, OutputDataConfig=None)
    assert s3.download_inputs(local, RehearsalFolder(tmp_path)) == local
    with pytest.raises(RehearsalError, match=r"boto3 is not installed\. HINT: pip install 'lightning-sm\[rehearse\]'"):
        s3.download_inputs(request(), RehearsalFolder(tmp_path))
