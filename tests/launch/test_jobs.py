"""States, log lines and models of jobs, from a real server with AWS's API (moto)."""

import io
import json
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from lightning_sm.__main__ import main
from lightning_sm.launch import LaunchError
from lightning_sm.launch._watch import LogReader, follow, follow_until_interrupted
from tests.launch.test_send import CHANNEL, OPTIONS

pytestmark = pytest.mark.services
GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture
def job(aws, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *OPTIONS, *CHANNEL, "--name", "job-1"]) == 0
    aws.client("logs").create_log_group(logGroupName=GROUP)
    capsys.readouterr()
    return aws


def write(session, host, *lines, job="job-1", start=0):
    """Write lines a millisecond apart, as the agent of a host does."""
    logs = session.client("logs")
    stream = f"{job}/{host}-1700000000"
    if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=stream)["logStreams"]:
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
    now = int(time.time() * 1000) - 60_000
    events = [{"timestamp": now + start + k, "message": line} for k, line in enumerate(lines)]
    for first in range(0, len(events), 5000):
        logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events[first : first + 5000])


def test_lines_of_all_hosts_with_host_and_rank(job):
    write(job, "algo-1", "first", "[1,mpirank:3,algo-2]<stdout>:loss 1", start=0)
    write(job, "algo-2", "second", start=0)
    write(job, "algo-1", "not ours", job="job-10")
    reader = LogReader(job.client("logs"), "job-1")
    assert sorted(reader.lines()) == ["[algo-1 rank 3] loss 1", "[algo-1] first", "[algo-2] second"]
    assert list(reader.lines()) == []
    write(job, "algo-2", "third", start=100)
    assert list(reader.lines()) == ["[algo-2] third"]


def test_a_job_of_20_hosts_loses_no_line_and_keeps_the_order(job):
    for host in range(1, 21):
        write(job, f"algo-{host}", *(f"{host} line {k}" for k in range(3000)), start=0)
    seen = list(LogReader(job.client("logs"), "job-1").lines())
    assert len(seen) == 20 * 3000
    for host in (1, 7, 20):
        mine = [line for line in seen if line.startswith(f"[algo-{host}] ")]
        assert mine == [f"[algo-{host}] {host} line {k}" for k in range(3000)]


def test_states_lines_and_the_end(job):
    write(job, "algo-1", "trained")
    lines = []
    assert follow(job, "job-1", poll_seconds=0.05, write=lines.append) == "Completed"
    assert any(" Starting" in line for line in lines)
    assert "[algo-1] trained" in lines
    assert lines[-1].startswith("Training job job-1: Completed")
    assert len(lines) == len(set(lines))


def test_lines_that_come_after_the_end_are_shown(job):
    write(job, "algo-1", "one")
    lines = []
    late = threading.Timer(0.3, write, (job, "algo-1", "late"), {"start": 50})
    late.start()
    follow(job, "job-1", poll_seconds=0.25, write=lines.append)
    late.join()
    assert "[algo-1] late" in lines


def test_throttling_does_not_end_it_and_loses_nothing(job, monkeypatch):
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    write(job, "algo-1", *(f"line {k}" for k in range(10)))
    original, calls = BaseClient._make_api_call, []

    def throttle(client, operation, arguments):
        calls.append(operation)
        if len(calls) % 3 == 0:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, operation)
        return original(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", throttle)
    lines = []
    follow(job, "job-1", poll_seconds=0.01, write=lines.append)
    assert [line for line in lines if line.startswith("[algo")] == [f"[algo-1] line {k}" for k in range(10)]


def test_empty_pages_and_a_network_that_is_away(job, monkeypatch, capsys):
    from botocore.client import BaseClient
    from botocore.exceptions import EndpointConnectionError

    write(job, "algo-1", "one", "two")
    original, calls = BaseClient._make_api_call, []

    def answer(client, operation, arguments):
        calls.append(operation)
        if len(calls) in (7, 8):
            raise EndpointConnectionError(endpoint_url="http://nowhere")
        if operation == "GetLogEvents" and "nextToken" not in arguments:
            return {"events": [], "nextForwardToken": "f/empty"}
        if arguments.get("nextToken") == "f/empty":
            arguments = {name: value for name, value in arguments.items() if name != "nextToken"}
        return original(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    lines = []
    assert follow(job, "job-1", poll_seconds=0.01, write=lines.append) == "Completed"
    assert [line for line in lines if line.startswith("[algo")] == ["[algo-1] one", "[algo-1] two"]
    assert "Nothing answers" in capsys.readouterr().err

    def unreachable(client, operation, arguments):
        raise EndpointConnectionError(endpoint_url="http://nowhere")

    monkeypatch.setattr(BaseClient, "_make_api_call", unreachable)
    with pytest.raises(LaunchError, match="Check the network"):
        follow(job, "job-1", write=lines.append)


def test_messages_that_sagemaker_writes_again(job, monkeypatch):
    from datetime import datetime

    from botocore.client import BaseClient

    original, left = (
        BaseClient._make_api_call,
        ["Preparing", "Downloading the image 10 %", "Downloading the image 90 %"],
    )

    def answer(client, operation, arguments):
        found = original(client, operation, arguments)
        if operation == "DescribeTrainingJob":
            message = left.pop(0) if left else "Done"
            found["SecondaryStatusTransitions"] = [
                {"Status": "Pending", "StartTime": datetime(2026, 1, 1), "StatusMessage": "Waiting"},
                {"Status": "Downloading", "StartTime": datetime(2026, 1, 1), "StatusMessage": message},
            ]
        return found

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    lines = []
    follow(job, "job-1", poll_seconds=0.01, write=lines.append)
    assert [line.partition(": ")[2] for line in lines[:-1]] == [
        "Waiting", "Preparing", "Downloading the image 10 %", "Downloading the image 90 %",
    ]  # fmt: skip


def test_tuning_jobs_are_listed_shown_stopped_and_fetched(aws, job, capsys):
    search = ("--objective", "a", "--direction", "maximize", "--max-jobs", "2", "--range", "model.lr=[1, 2]")
    assert main(["tune", *OPTIONS, *CHANNEL, *search, "--name", "tune-1"]) == 0
    capsys.readouterr()
    assert main(["jobs", "--json"]) == 0
    listed = {each["name"]: each["kind"] for each in json.loads(capsys.readouterr().out)}
    assert listed == {"job-1": "training", "tune-1": "tuning"}
    assert main(["logs", "tune-1"]) == 0
    assert "Tuning job tune-1: Completed" in capsys.readouterr().out
    assert main(["artifacts", "tune-1"]) == 1
    shown = capsys.readouterr().err
    assert "The best training job of tune-1: FakeTrainingJobName" in shown
    assert "There is no training job and no tuning job 'FakeTrainingJobName'" in shown


def test_a_reader_that_ends_is_no_error(job, capsys):
    script = "from lightning_sm.__main__ import main; import sys; sys.exit(main(['jobs', '--json']))"
    listing = subprocess.Popen(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | true', sys.executable, script],
        stderr=subprocess.PIPE,
        text=True,
    )
    _, err = listing.communicate(timeout=120)
    assert (listing.returncode, err) == (141, "")


def test_no_log_group_yet(aws, job):
    aws.client("logs").delete_log_group(logGroupName=GROUP)
    assert list(LogReader(aws.client("logs"), "job-1").lines()) == []


def test_an_interrupt_detaches_and_says_how_to_come_back(job, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    assert follow_until_interrupted(job, "job-1", write=interrupt) == 130
    assert "lightning-sm logs job-1 --follow" in capsys.readouterr().err


def test_the_commands(job, capsys):
    write(job, "algo-1", "trained")
    assert main(["logs", "job-1"]) == 0
    assert "[algo-1] trained" in capsys.readouterr().out
    assert main(["jobs", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["job-1"]
    assert main(["jobs", "--contains", "none"]) == 0
    assert "no training jobs and no tuning jobs" in capsys.readouterr().err
    assert main(["logs", "none"]) == 1
    assert "There is no training job and no tuning job 'none'" in capsys.readouterr().err


def put_model(session, uri, **files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    bucket, _, key = uri.partition("://")[2].partition("/")
    session.client("s3").put_object(Bucket=bucket, Key=key, Body=buffer.getvalue())


@pytest.fixture
def model_uri(job):
    return job.client("sagemaker").describe_training_job(TrainingJobName="job-1")["ModelArtifacts"]["S3ModelArtifacts"]


def test_artifacts_are_unpacked_and_replace_nothing(job, model_uri, capsys, tmp_path):
    put_model(job, model_uri, **{"model.pt": "weights", "code__inference.py": "x"})
    assert main(["artifacts", "job-1", "--json"]) == 0
    assert (tmp_path / "job-1" / "code" / "inference.py").read_text() == "x"
    assert sorted(json.loads(capsys.readouterr().out)["files"]) == ["job-1/code/inference.py", "job-1/model.pt"]
    (tmp_path / "job-1" / "model.pt").write_text("mine")
    assert main(["artifacts", "job-1"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "job-1" / "model.pt").read_text() == "mine"


def test_archives_that_are_none_or_reach_outside(job, model_uri, capsys, tmp_path):
    put_model(job, model_uri, **{"..__outside": "x"})
    assert main(["artifacts", "job-1"]) == 1
    assert "lies outside" in capsys.readouterr().err
    assert not (tmp_path / "outside").exists()
    bucket, _, key = model_uri.partition("://")[2].partition("/")
    job.client("s3").put_object(Bucket=bucket, Key=key, Body=b"no archive")
    assert main(["artifacts", "job-1"]) == 1
    assert "cannot be unpacked" in capsys.readouterr().err
    job.client("s3").delete_object(Bucket=bucket, Key=key)
    assert main(["artifacts", "job-1"]) == 1
    shown = capsys.readouterr().err
    assert "s3:GetObject" in shown
    assert (
        "HINT: The job wrote nothing there, or the archive was deleted. Its checkpoints are at s3://bucket/job-1/"
        in shown
    )
