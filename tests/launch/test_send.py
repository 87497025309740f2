"""Jobs are sent to a real server with AWS's API (moto), over HTTP."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from lightning_sm.launch import main

pytestmark = pytest.mark.services
ROLE = "arn:aws:iam::123456789012:role/Trainer"
OPTIONS = ("--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.xlarge", "--role", ROLE, "--bucket", "bucket")
CHANNEL = ("--channel", "training=s3://bucket/data")


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    folder = tmp_path / "my_project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("print(1)")
    return folder


def launch(*words, capsys=None):
    code = main([*OPTIONS, *CHANNEL, *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_job_is_created_with_its_source(aws, capsys):
    code, out, err = launch("--json", "fit", "--trainer.max_epochs", "5", capsys=capsys)
    assert code == 0, err
    shown = json.loads(out)
    assert shown["name"].startswith("my-project-20")
    job = aws.client("sagemaker").describe_training_job(TrainingJobName=shown["name"])
    assert job["TrainingJobArn"] == shown["arn"]
    assert job["HyperParameters"]["trainer.max_epochs"] == "5"
    assert job["CheckpointConfig"]["S3Uri"] == f"s3://bucket/{shown['name']}/checkpoints"
    address = json.loads(job["HyperParameters"]["sagemaker_submit_directory"])
    body = aws.client("s3").get_object(Bucket="bucket", Key=address.partition("bucket/")[2])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert "train.py" in archive.getnames()
    assert "3 files" in err


def test_the_dry_run_is_what_is_sent(aws, capsys):
    code, out, _ = launch("--name", "job-1", "--metric", "loss", "--dry-run", capsys=capsys)
    printed = json.loads(out)
    assert code == 0
    assert aws.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert "Contents" not in aws.client("s3").list_objects_v2(Bucket="bucket")
    assert launch("--name", "job-1", "--metric", "loss", capsys=capsys)[0] == 0
    sent = aws.client("sagemaker").describe_training_job(TrainingJobName="job-1")
    # moto answers with metric definitions of its own.
    for body in (printed, sent):
        assert body["AlgorithmSpecification"].pop("MetricDefinitions")
    same = set(printed) - {"ProfilerConfig"}  # moto forgets it
    assert {key: sent[key] for key in same} == {key: printed[key] for key in same}


def test_a_name_that_is_taken_uploads_nothing(aws, capsys, source):
    assert launch("--name", "job-1", capsys=capsys)[0] == 0
    (source / "train.py").write_text("print(2)")
    before = aws.client("s3").list_objects_v2(Bucket="bucket")["Contents"]
    code, _, err = launch("--name", "job-1", capsys=capsys)
    assert code == 1
    assert "There is a training job 'job-1' already" in err
    assert aws.client("s3").list_objects_v2(Bucket="bucket")["Contents"] == before


def test_the_default_bucket_is_that_of_the_sdk(aws, capsys):
    aws.client("s3").create_bucket(Bucket="sagemaker-us-east-1-123456789012")
    words = [*OPTIONS[:6], "--dry-run"]
    assert main(words) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["OutputDataConfig"]["S3OutputPath"] == "s3://sagemaker-us-east-1-123456789012/"


def test_a_bucket_that_is_not_there(aws, capsys):
    code, _, err = launch("--bucket", "none", capsys=capsys)
    assert code == 1
    assert "s3:PutObject to s3://none/" in err
    assert "HINT: Create the bucket, or give --bucket" in err
    assert aws.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_no_credentials(aws, capsys, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, _, err = launch(capsys=capsys)
    assert code == 1
    assert "Unable to locate credentials" in err
    assert "aws sso login" in err


def test_no_network(aws, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    code, _, err = launch(capsys=capsys)
    assert code == 1
    assert "sagemaker:DescribeTrainingJob failed" in err
    assert "Check the network" in err


def test_no_region_and_a_wrong_profile(aws, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert "There is no AWS region" in launch(capsys=capsys)[2]
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert "Check AWS_PROFILE" in launch(capsys=capsys)[2]


def test_expired_and_denied(aws, capsys, monkeypatch):
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    original = BaseClient._make_api_call
    refused = {}

    def refuse(client, operation, arguments):
        if operation in refused:
            raise ClientError({"Error": {"Code": refused[operation], "Message": "no"}}, operation)
        return original(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    for operation, error_code, advice in (
        ("DescribeTrainingJob", "ExpiredTokenException", "have expired"),
        ("CreateTrainingJob", "AccessDeniedException", "need the permission sagemaker:CreateTrainingJob"),
        ("CreateTrainingJob", "ThrottlingException", "try again in a minute"),
        ("CreateTrainingJob", "ResourceLimitExceeded", "Service Quotas"),
        ("PutObject", "AccessDenied", "need the permission s3:PutObject"),
        ("PutObject", "PermanentRedirect", "in another region"),
    ):
        refused.clear()
        refused[operation] = error_code
        code, _, err = launch(capsys=capsys)
        assert code == 1
        assert advice in err, (operation, err)


def test_no_torch_and_no_sdk_is_imported(aws, source):
    script = (
        "import sys; from lightning_sm.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = ('torch', 'lightning', 'pytorch_lightning', 'sagemaker', 'jsonargparse'); "
        "print(code, [module for module in heavy if module in sys.modules])"
    )
    command = [sys.executable, "-c", script, "launch", *OPTIONS, "--dry-run"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ), cwd=source)
    assert finished.stdout.splitlines()[-1] == "0 []"
