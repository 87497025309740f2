"""A server with AWS's API on this machine (moto), and credentials that are none."""

import os
import sys
import urllib.request
from typing import NamedTuple, Optional

import pytest

from lightning_sm.__main__ import main
from tests.helpers.processes import free_port, server

ROLE = "arn:aws:iam::123456789012:role/Trainer"
NO_BUCKET = ("--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.xlarge", "--role", ROLE)
OPTIONS = (*NO_BUCKET, "--bucket", "bucket", "--channel", "training=s3://bucket/data")


class Shown(NamedTuple):
    """What a command has shown."""

    status: Optional[int]
    out: str
    err: str


_VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_REGION")


@pytest.fixture(scope="session")
def aws_server():
    """The address of the server."""
    pytest.importorskip("moto", reason="moto stands in for AWS's API")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with server([sys.executable, "-m", "moto.server", "-p", str(port)], f"{address}/moto-api/"):
        yield address


@pytest.fixture
def aws(aws_server, monkeypatch):
    """An empty account at that server, with the bucket ``bucket``; the value is a boto3 session."""
    import boto3

    request = urllib.request.Request(f"{aws_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": aws_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")
    session = boto3.Session()
    session.client("s3").create_bucket(Bucket="bucket")
    return session


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory, a project whose program has no parser of its own."""
    folder = tmp_path / "my_project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("import lightning_sm\nprint(1)")
    return folder


@pytest.fixture
def run(project, capsys):
    """Runs ``lightning-sm`` with words, for a job that may be sent where ``options`` is not false; what it showed."""

    def run(command, *words, options=OPTIONS):
        status = main([command, *(options if command in ("launch", "tune") else ()), *words])
        return Shown(status, *capsys.readouterr())

    return run
