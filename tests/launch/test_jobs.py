"""States, log lines and models of jobs, from a real server with AWS's API (moto)."""

import io
import json
import tarfile
import threading
import time

import pytest

from lightning_sm.__main__ import main
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
    assert "no training jobs" in capsys.readouterr().err
    assert main(["logs", "none"]) == 1
    assert "sagemaker:DescribeTrainingJob for none failed" in capsys.readouterr().err


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
    assert "s3:GetObject" in capsys.readouterr().err
