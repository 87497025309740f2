"""Jobs are sent to a real server with AWS's API (moto), over HTTP."""

import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading

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


def test_the_default_bucket_is_made_on_a_fresh_account(aws, capsys):
    assert main([*OPTIONS[:6], "--name", "job-1"]) == 0
    bucket = "sagemaker-us-east-1-123456789012"
    assert f"Made the bucket {bucket}" in capsys.readouterr().err
    grants = aws.client("s3").get_bucket_acl(Bucket=bucket)["Grants"]
    assert [each["Grantee"]["Type"] for each in grants] == ["CanonicalUser"]
    assert main([*OPTIONS[:6], "--name", "job-2"]) == 0
    assert "Made" not in capsys.readouterr().err


def test_what_is_missing_is_named_at_once(aws, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert main(["fit", "--config", "config.yaml"]) == 1
    assert "There is no --image, no --instance-type, no --role, no --region" in capsys.readouterr().err
    assert main([*OPTIONS, "--region", "us-east-1", "--source-dir", "none"]) == 1
    assert "--source-dir none is no folder" in capsys.readouterr().err


def test_a_request_is_sent_as_it_was_written(aws, capsys, source):
    assert main([*OPTIONS, *CHANNEL, "--name", "job-1", "--dry-run", "--spot", "--", "--lr", "010"]) == 0
    written = capsys.readouterr().out
    (source / "request.json").write_text(written)
    assert main(["--request", "request.json"]) == 0
    client = aws.client("sagemaker")
    sent = client.describe_training_job(TrainingJobName="job-1")
    body = json.loads(written)
    sent["AlgorithmSpecification"].pop(
        "MetricDefinitions"
    )  # moto answers with some of its own, and forgets ProfilerConfig
    assert body.pop("ProfilerConfig")
    assert {key: sent[key] for key in body} == body
    assert aws.client("s3").head_object(Bucket="bucket", Key="job-1/source/sourcedir.tar.gz")["ContentLength"] > 100
    capsys.readouterr()
    assert main(["--request", "request.json", "--name", "job-2"]) == 0
    again = client.describe_training_job(TrainingJobName="job-2")
    assert again["CheckpointConfig"]["S3Uri"] == "s3://bucket/job-2/checkpoints"
    assert again["HyperParameters"]["sagemaker_job_name"] == '"job-2"'
    assert again["HyperParameters"]["lr"] == '"010"'
    assert aws.client("s3").head_object(Bucket="bucket", Key="job-2/source/sourcedir.tar.gz")["ContentLength"] > 100


def test_a_request_excludes_what_it_contains(aws, capsys, source):
    (source / "request.json").write_text("{}")
    for words, message in (
        (["--spot"], "--request and --spot exclude each other"),
        (["fit", "--lr", "1"], "--request and fit --lr 1 exclude"),
        ([], "holds no CreateTrainingJob request"),
    ):
        assert main(["--request", "request.json", *words]) == 1
        assert message in capsys.readouterr().err


def test_a_folder_as_a_channel_is_uploaded_once(aws, capsys, source):
    (source / "data" / "inner").mkdir(parents=True)
    (source / "data" / "a.bin").write_bytes(b"a" * 1000)
    (source / "data" / "inner" / "b.bin").write_bytes(b"b")
    words = [*OPTIONS, "--channel", "training=data", "--allow-file", "data/a.bin"]
    assert main([*words, "--name", "job-1"]) == 0
    assert "Channel data: 2 of 2 files" in capsys.readouterr().err
    client = aws.client("sagemaker")

    def address(name):
        (channel,) = client.describe_training_job(TrainingJobName=name)["InputDataConfig"]
        return channel["DataSource"]["S3DataSource"]["S3Uri"]

    first = address("job-1")
    assert first.startswith("s3://bucket/my-project/channels/training-")
    listed = aws.client("s3").list_objects_v2(Bucket="bucket", Prefix=first.partition("bucket/")[2])["Contents"]
    assert [each["Key"].partition("training-")[2].partition("/")[2] for each in listed] == ["a.bin", "inner/b.bin"]
    assert main([*words, "--name", "job-2"]) == 0
    assert "Channel data: 0 of 2 files" in capsys.readouterr().err
    assert address("job-2") == first
    (source / "data" / "a.bin").write_bytes(b"c" * 1000)
    assert main([*words, "--name", "job-3"]) == 0
    assert address("job-3") != first


def test_a_bucket_that_is_not_there(aws, capsys):
    code, _, err = launch("--bucket", "none", capsys=capsys)
    assert code == 1
    assert "s3:PutObject to s3://none/" in err
    assert "HINT: Make it with `aws s3 mb`" in err
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
    assert main([*OPTIONS[:6]]) == 1
    shown = capsys.readouterr().err
    assert "sts:GetCallerIdentity failed" in shown
    assert "HINT: Check the network" in shown


def test_the_page_of_a_proxy_is_one_line(aws, capsys, monkeypatch):
    page = b"<!DOCTYPE html>\n<html><body>" + b"<p>Access to this site is blocked.</p>\n" * 40 + b"</body></html>"

    class Proxy(http.server.BaseHTTPRequestHandler):
        status = 200

        def do_POST(self):
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for status in (200, 403):
        Proxy.status = status
        for words in (OPTIONS, OPTIONS[:6]):
            assert main([*words]) == 1
            shown = capsys.readouterr().err
            assert len(shown.replace("Source of .: 3 files, 0.6 MB (0.6 MB packed)\n", "").splitlines()) == 1
            assert "HTTPS_PROXY" in shown, (status, words)
    server.shutdown()


def test_no_region_and_a_wrong_profile(aws, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert "There is no --region" in launch(capsys=capsys)[2]
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert "Check AWS_PROFILE" in launch(capsys=capsys)[2]


def test_expired_and_denied(aws, capsys, monkeypatch):
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    original = BaseClient._make_api_call
    refused = {}

    def refuse(client, operation, arguments):
        if operation in refused:
            code, _, message = refused[operation].partition(" ")
            raise ClientError({"Error": {"Code": code, "Message": message or "no"}}, operation)
        return original(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    pass_role = "User: x is not authorized to perform: iam:PassRole on resource: y"
    for operation, error_code, advice in (
        ("DescribeTrainingJob", "ExpiredTokenException", "have expired"),
        ("CreateTrainingJob", "AccessDeniedException", "need the permission sagemaker:CreateTrainingJob"),
        ("CreateTrainingJob", f"AccessDeniedException {pass_role}", "need the permission iam:PassRole"),
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
