"""Jobs are sent to a real server with AWS's API (moto), over HTTP."""

import json
import re
import subprocess
import sys
import threading

import pytest

from lightning_sm.launch._send import describe
from tests.launch.conftest import NO_BUCKET, OPTIONS, refusal
from tests.launch.test_request import RECORDED

pytestmark = pytest.mark.full
NO_CHANNEL = (*NO_BUCKET, "--bucket", "bucket")
DEFAULT_BUCKET = "sagemaker-us-east-1-123456789012"
SEARCH = ("--objective", "val_acc", "--direction", "maximize", "--max-jobs", "4", "--no-check")
LR = ("--range", "model.lr={min: 1e-5, max: 1e-1, scale: log}")


def described(session, name):
    return session.client("sagemaker").describe_training_job(TrainingJobName=name)


def keys(session, bucket="bucket", prefix=""):
    listed = session.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())
    return sorted(each["Key"][len(prefix) :] for each in listed)


def common(sent, printed):
    """What was sent and printed; moto forgets some fields, and answers with metric definitions of its own."""
    for body in (sent, printed):
        body["AlgorithmSpecification"].pop("MetricDefinitions", None)
    same = set(printed) - {"ProfilerConfig", "Environment"}
    return {key: sent[key] for key in same}, {key: printed[key] for key in same}


@pytest.mark.parametrize(
    ("command", "words", "kind"),
    [("launch", ("--metric", "loss"), "TrainingJob"), ("tune", (*SEARCH, *LR), "HyperParameterTuningJob")],
)
def test_the_dry_run_is_what_is_sent_and_a_name_is_taken_once(aws, run, command, words, kind, project):
    words = ("--name", "job-1", *words)
    printed = json.loads(run(command, *words, "--dry-run").out)
    assert keys(aws) == []
    told = json.loads(run(command, "--json", *words).out)
    assert (told["name"], told["console"].rpartition("/")[2]) == ("job-1", "job-1")
    sent = describe(aws, kind, "job-1")
    if command == "launch":
        sent, printed = common(sent, printed)
    assert {key: sent[key] for key in printed} == printed
    before = keys(aws)
    (project / "train.py").write_text("print(2)")
    again = run(command, *words)
    assert (again.status, keys(aws)) == (1, before)
    assert "There is a job 'job-1' already" in again.err


def test_the_default_bucket_is_made_on_a_fresh_account_also_of_a_request(aws, run, project):
    (project / "request.json").write_text(run("launch", "--name", "job-1", "--dry-run", options=NO_BUCKET).out)
    shown = run("launch", "--request", "request.json", options=())
    assert f"Made the bucket {DEFAULT_BUCKET}" in shown.err
    grants = aws.client("s3").get_bucket_acl(Bucket=DEFAULT_BUCKET)["Grants"]
    assert [each["Grantee"]["Type"] for each in grants] == ["CanonicalUser"]
    assert described(aws, "job-1")["OutputDataConfig"]["S3OutputPath"] == f"s3://{DEFAULT_BUCKET}/"
    assert "Made" not in run("launch", "--name", "job-2", options=NO_BUCKET).err
    # That of another account is there, if anywhere, and nobody makes it for them.
    other = DEFAULT_BUCKET.replace("123456789012", "210987654321")
    words = ("--bucket", other, "--name", "job-3", "--dry-run")
    (project / "request.json").write_text(run("launch", *words, options=NO_BUCKET).out)
    shown = run("launch", "--request", "request.json", options=())
    assert (shown.status, "Made" in shown.err, "NoSuchBucket" in shown.err) == (1, False, True)


def test_a_request_is_sent_as_it_was_written(aws, run, project):
    words = ("--name", "job-1", "--dry-run", "--spot", "--set", "Environment.LIGHTNING_SM_AUTO=null")
    written = run("launch", *words, "--", "--lr", "010").out
    (project / "request.json").write_text(written)
    assert run("launch", "--request", "request.json", options=()).status == 0
    sent, printed = common(described(aws, "job-1"), json.loads(written))
    assert sent == printed
    assert run("launch", "--request", "request.json", "--name", "job-2", options=()).status == 0
    again = described(aws, "job-2")
    assert again["CheckpointConfig"]["S3Uri"] == "s3://bucket/job-2/checkpoints"
    assert again["HyperParameters"]["sagemaker_job_name"] == '"job-2"'
    assert again["HyperParameters"]["lr"] == '"010"'
    assert keys(aws) == ["job-1/launch/sourcedir.tar.gz", "job-2/launch/sourcedir.tar.gz"]
    (project / "request.json").write_text("{}")
    for words, message in (
        (["--spot"], "--request and --spot exclude each other"),
        (["--no-forward-sigterm"], "--request and --forward-sigterm exclude each other"),
        (["fit", "--lr", "1"], "--request and fit --lr 1 exclude"),
        ([], "holds no CreateTrainingJob request"),
    ):
        assert message in run("launch", "--request", "request.json", *words, options=()).err


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://saved/job-1", "s3://saved/job-2"),
        ("s3://saved/job-1/", "s3://saved/job-2/"),
        ("s3://job-1/job-1/x", "s3://job-1/job-2/x"),
        ("s3://saved/job-10", "s3://saved/job-10"),
    ],
)
def test_checkpoints_of_the_jobs_name_get_the_new_one_and_data_keep_it(aws, run, project, place, expected):
    words = ("--name", "job-1", "--checkpoints", place, "--dry-run", "--channel", "job-1=s3://data/job-1/images")
    (project / "request.json").write_text(run("launch", *words, "--", "--dataset", "job-1", options=NO_CHANNEL).out)
    printed = run("launch", "--request", "request.json", "--name", "job-2", "--dry-run", options=()).out
    body = json.loads(printed)
    assert body["CheckpointConfig"]["S3Uri"] == expected
    (channel,) = body["InputDataConfig"]
    assert (channel["ChannelName"], body["HyperParameters"]["dataset"]) == ("job-1", '"job-1"')
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://data/job-1/images"
    assert printed.count("s3://bucket/job-2/") == 1


def test_the_archive_of_an_sdk_stays_as_it_is(aws, run, project):
    # As its users set it, too.
    body = {**RECORDED["none"], "Environment": {"LIGHTNING_SM_AUTO": "1"}}
    address = json.loads(body["HyperParameters"]["sagemaker_submit_directory"])
    bucket, key = address[len("s3://") :].split("/", 1)
    aws.client("s3").put_object(Bucket=bucket, Key=key, Body=b"the SDK's")
    (project / "request.json").write_text(json.dumps(body))
    for name in ((), ("--name", "job-2")):
        assert run("launch", "--request", "request.json", *name, options=()).status == 0
    assert json.loads(described(aws, "job-2")["HyperParameters"]["sagemaker_submit_directory"]) == address
    assert aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read() == b"the SDK's"
    assert keys(aws) == [key]


def test_a_folder_as_a_channel_is_uploaded_once(aws, run, project):
    (project / "data" / "inner").mkdir(parents=True)
    (project / "data" / "a.bin").write_bytes(b"a" * 1000)
    (project / "data" / "inner" / "b.bin").write_bytes(b"b")
    words = ("--channel", "training=data")

    def address(name):
        (channel,) = described(aws, name)["InputDataConfig"]
        return channel["DataSource"]["S3DataSource"]["S3Uri"]

    assert "Channel data: 2 of 2 files" in run("launch", *words, "--name", "job-1").err
    first = address("job-1")
    assert first.startswith("s3://bucket/my-project/channels/training-")
    assert keys(aws, prefix=f"{first.partition('bucket/')[2]}/") == ["a.bin", "inner/b.bin"]
    assert "Channel data: 0 of 2 files" in run("launch", *words, "--name", "job-2").err
    assert address("job-2") == first
    (project / "request.json").write_text(run("launch", *words, "--name", "job-4", "--dry-run").out)
    (project / "data" / "a.bin").write_bytes(b"c" * 1000)
    assert run("launch", *words, "--name", "job-3").status == 0
    assert address("job-3") != first
    assert "is not the data of the request" in run("launch", *words, "--request", "request.json", options=()).err
    # The folder has to be given again where no job has uploaded it.
    assert run("launch", "--request", "request.json", options=()).status == 0
    (project / "data" / "a.bin").write_bytes(b"d" * 1000)
    (project / "request.json").write_text(run("launch", *words, "--name", "job-5", "--dry-run").out)
    shown = run("launch", "--request", "request.json", options=())
    assert (shown.status, "HINT: Give it again: --channel training=FOLDER." in shown.err) == (1, True)


SERIES = ("train-0a1b2c/fit-0/step-8.ckpt", "train-0a1b2c/fit-0/step-8.json", "train-0a1b2c/fit-0/fit.json")
OLD = "s3://bucket/job-0/checkpoints"


def test_checkpoints_of_another_job_are_copied_to_the_jobs_own_prefix(aws, run, project):
    for name in ("last.ckpt", *SERIES):
        aws.client("s3").put_object(Bucket="bucket", Key=f"job-0/checkpoints/{name}", Body=name.encode())
    words = ("--name", "job-1", "--from-checkpoint", OLD)
    printed = run("launch", *words, "--dry-run", "fit", "--model.lr", "1").out
    assert json.loads(printed)["HyperParameters"]["sagemaker.resume"] == '"require"'
    assert keys(aws, prefix="job-1/") == []
    for start, message in (
        (f"{OLD}/none", "holds no save of a job"),
        (f"{OLD}/last.ckpt", "holds no save of a job"),
        ("s3://none/x", "s3:ListBucket of s3://none/x failed"),
    ):
        shown = run("launch", "--from-checkpoint", start)
        assert (shown.status, aws.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]) == (1, [])
        assert message in shown.err
    assert "has no place for checkpoints" in run("launch", *words, "--checkpoints", "none").err
    (project / "request.json").write_text(printed)
    assert run("launch", "--request", "request.json", "--from-checkpoint", OLD, options=()).status == 0
    assert keys(aws, prefix="job-1/checkpoints/") == sorted(["last.ckpt", *SERIES])
    body = aws.client("s3").get_object(Bucket="bucket", Key=f"job-1/checkpoints/{SERIES[0]}")["Body"].read()
    assert body == SERIES[0].encode()


def test_what_is_missing_is_named_at_once(aws, run, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    missing = "There is no --image, no --instance-type, no --role, no --region"
    assert missing in run("launch", "fit", "--config", "config.yaml", options=()).err
    assert f"{missing}, no --objective, no --direction, no --range, no --max-jobs." in run("tune", options=()).err
    assert "There is no --region" in run("launch").err
    assert "--source-dir none is no folder" in run("launch", "--region", "us-east-1", "--source-dir", "none").err
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert json.loads(run("launch", "--dry-run").out)["TrainingJobName"].startswith("my-project-20")
    assert "Values, value: 0" in run("tune", *SEARCH, "--range", "a=[]").err
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert "Check AWS_PROFILE" in run("launch").err


def test_no_credentials(aws, run, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    shown = run("launch")
    assert (shown.status, "Unable to locate credentials" in shown.err, "aws sso login" in shown.err) == (1, True, True)


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("http://127.0.0.1:9", OPTIONS, "DescribeTrainingJob.* failed: .*HINT: Check the network"),
        ("http://127.0.0.1:9", NO_BUCKET, "GetCallerIdentity.* failed: .*HINT: Check the network"),
        ("localhost:4566", OPTIONS, "failed: Invalid endpoint: localhost:4566"),
    ],
)
def test_no_network(aws, run, monkeypatch, address, options, said):
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    shown = run("launch", options=options)
    assert shown.status == 1
    assert re.search(said, shown.err)


def test_a_name_that_no_bucket_can_have(aws, run):
    shown = run("launch", "--bucket", "my bucket", options=NO_BUCKET)
    assert re.search("PutObject.* failed: .*Invalid bucket name.*HINT: Correct what is named", shown.err)


@pytest.mark.parametrize("status", [200, 403])
def test_the_page_of_a_proxy_is_one_line(aws, run, monkeypatch, status):
    from werkzeug.serving import make_server
    from werkzeug.wrappers import Response

    page = "<!DOCTYPE html>\n<html><body>" + "<p>Access to this site is blocked.</p>\n" * 40 + "</body></html>"
    server = make_server("127.0.0.1", 0, Response(page, status))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    for options in (OPTIONS, NO_BUCKET):
        shown = run("launch", options=options)
        (line,) = (line for line in shown.err.splitlines() if not line.startswith(("Source of", "127.0.0.1 - -")))
        assert (shown.status, "HTTPS_PROXY" in line) == (1, True)
    server.shutdown()


@pytest.mark.parametrize(
    ("operation", "code", "advice"),
    [
        ("DescribeTrainingJob", "ExpiredTokenException", "have expired"),
        ("CreateTrainingJob", "AccessDeniedException", "need the permission that is named here"),
        ("CreateTrainingJob", "ThrottlingException", "try again in a minute"),
        ("CreateTrainingJob", "ResourceLimitExceeded", "Service Quotas"),
        ("PutObject", "AccessDenied", "need the permission that is named here"),
        ("PutObject", "PermanentRedirect", "in another region"),
        ("PutObject", "NoSuchBucket", "HINT: Make it with `aws s3 mb`"),
    ],
)
def test_what_aws_refuses(aws, run, answers, operation, code, advice):
    def refuse(call, name, arguments):
        if name == operation:
            raise refusal(code, "no")
        return call()

    answers(refuse)
    shown = run("launch")
    assert shown.status == 1
    assert advice in shown.err
    assert aws.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_no_torch_and_no_sdk_is_imported(aws, project):
    script = (
        "import sys; from lightning_sm.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = ('torch', 'lightning', 'pytorch_lightning', 'sagemaker'); "
        "print(code, [module for module in heavy if module in sys.modules])"
    )
    command = [sys.executable, "-c", script, "launch", *OPTIONS, "--dry-run"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "0 []"
