"""A project, and what ``lightning-sm`` shows of it at a server with AWS's API on this machine (moto)."""

from collections import namedtuple

import pytest

from lightning_sm.__main__ import main

ROLE = "arn:aws:iam::123456789012:role/Trainer"
NO_BUCKET = ("--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.xlarge", "--role", ROLE)
OPTIONS = (*NO_BUCKET, "--bucket", "bucket", "--channel", "training=s3://bucket/data")


Shown = namedtuple("Shown", "status out err")


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


@pytest.fixture
def answers(monkeypatch):
    """Replaces the answers of the service by those of a function of the call, the operation and its arguments."""
    from botocore.client import BaseClient

    original = BaseClient._make_api_call

    def replace(answer):
        def call(client, operation, arguments):
            return answer(lambda given=arguments: original(client, operation, given), operation, arguments)

        monkeypatch.setattr(BaseClient, "_make_api_call", call)

    return replace


def refusal(code, message):
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code, "Message": message}}, "x")
