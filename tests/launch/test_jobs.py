"""States, log lines and models of jobs, from a real server with AWS's API (moto)."""

import io
import json
import random
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress

import pytest

from lightning_sm.launch._watch import follow

pytestmark = pytest.mark.full
GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture
def job(aws, run):
    assert run("launch", "--name", "job-1").status == 0
    aws.client("logs").create_log_group(logGroupName=GROUP)
    return aws


def write(session, *lines, job="job-1"):
    """Write lines a millisecond apart, as the agent of a host does."""
    logs = session.client("logs")
    stream = {"logGroupName": GROUP, "logStreamName": f"{job}/algo-1-1700000000"}
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_stream(**stream)
    now = int(time.time() * 1000)
    events = [{"timestamp": now + k, "message": line} for k, line in enumerate(lines)]
    logs.put_log_events(**stream, logEvents=events)


def followed(session, name="job-1", kind="TrainingJob", **options):
    lines = []
    status = follow(session, name, kind, **{"poll_seconds": 0.01, "write": lines.append, **options})
    return status, lines


def test_states_lines_and_the_end(job):
    write(job, "one", "[1,mpirank:3,algo-2]<stdout>:loss 1")
    write(job, "not ours", job="job-10")
    late = threading.Timer(0.3, write, (job, "late"))
    late.start()
    status, lines = followed(job, poll_seconds=0.25)
    late.join()
    assert status == 0
    assert any(" Starting" in line for line in lines)
    assert {"[algo-1] one", "[algo-1 rank 3] loss 1", "[algo-1] late"} == {line for line in lines if line[0] == "["}
    assert lines[-1].startswith("job-1: Completed")
    assert len(lines) == len(set(lines))


def test_empty_pages_and_a_network_that_is_away(job, answers):
    from botocore.exceptions import EndpointConnectionError

    write(job, "one", "two")
    calls = []

    def away(request, **_):
        calls.append(request.url)
        if len(calls) in (7, 8):
            raise EndpointConnectionError(endpoint_url=request.url)

    def answer(call, operation, arguments):
        if operation == "GetLogEvents" and "nextToken" not in arguments:
            return {"events": [], "nextForwardToken": "f/empty"}
        if arguments.get("nextToken") == "f/empty":
            return call({name: value for name, value in arguments.items() if name != "nextToken"})
        return call()

    answers(answer)
    job.events.register("before-send", away)
    status, lines = followed(job)
    assert status == 0
    assert [line for line in lines if line.startswith("[algo")] == ["[algo-1] one", "[algo-1] two"]
    assert len(calls) > 8


def best(value):
    metric = {"MetricName": "val_acc", "Value": value}
    return {
        "TrainingJobName": f"tune-1-00{value}",
        "TunedHyperParameters": {"model.lr": "0.1", "a": '"x"'},
        "FinalHyperParameterTuningJobObjectiveMetric": metric,
    }


def test_lines_of_a_tuning_job_are_written_when_something_has_changed(aws, answers):
    running = {"HyperParameterTuningJobStatus": "InProgress"}
    counted = {**running, "TrainingJobStatusCounters": {"InProgress": 2, "Completed": 0, "NonRetryableError": 1}}
    failed = {"HyperParameterTuningJobStatus": "Failed", "FailureReason": "No objective metrics found"}
    first, second = {**counted, "BestTrainingJob": best(1)}, {**counted, "BestTrainingJob": best(2)}
    left = [running, counted, counted, {**counted, "BestTrainingJob": {}}, first, second, second, failed]

    def answer(call, operation, arguments):
        config = {"ResourceLimits": {"MaxNumberOfTrainingJobs": 9}}
        return {"HyperParameterTuningJobConfig": config, **left.pop(0)}

    answers(answer)
    assert followed(aws, "tune-1", "HyperParameterTuningJob") == (
        1,
        [
            "Training jobs of 9: none yet",
            "Training jobs of 9: 2 in progress, 1 failed",
            'Best so far: tune-1-001, val_acc=1 (a="x", model.lr=0.1)',
            'Best so far: tune-1-002, val_acc=2 (a="x", model.lr=0.1)',
            "Training jobs of 9: none yet",
            "tune-1: Failed. No objective metrics found",
        ],
    )


def test_tuning_jobs_are_listed_shown_stopped_and_fetched(job, run):
    search = ("--objective", "a", "--direction", "maximize", "--max-jobs", "2", "--range", "model.lr=[1, 2]")
    shown = run("tune", *search, "--name", "tune-1", "--no-check", "--wait")
    assert shown.status == 0
    assert shown.out.splitlines()[1:] == [
        "Training jobs of 2: 1 completed",
        "Best so far: FakeTrainingJobName, Accuracy=1 (string=TunedHyperParameters)",
        "tune-1: Completed",
    ]
    listed = {each["name"]: each["kind"] for each in json.loads(run("jobs", "--json").out)}
    assert listed == {"job-1": "training", "tune-1": "tuning"}
    assert "tune-1: Completed" in run("logs", "tune-1").out
    shown = run("artifacts", "tune-1")
    assert (shown.status, shown.out) == (1, "")
    assert "The best training job of tune-1: FakeTrainingJobName" in shown.err
    assert "There is no training job and no tuning job 'FakeTrainingJobName'" in shown.err
    assert (
        "sagemaker:StopHyperParameterTuningJob for tune-1 failed" in run("stop", "tune-1").err
    )  # moto has no such call


def test_stopping_sends_a_call_that_botocore_takes(job, run, answers):
    from botocore.validate import ParamValidator

    stopped = []

    def answer(call, operation, arguments):
        if not operation.startswith("Stop"):  # of which moto has none
            return call()
        shape = job.client("sagemaker").meta.service_model.operation_model(operation).input_shape
        assert not ParamValidator().validate(arguments, shape).has_errors()
        stopped.append((operation, arguments))
        return {}

    answers(answer)
    shown = run("stop", "job-1")
    assert (shown.status, shown.out) == (0, "Stopping job-1.\n")
    assert stopped == [("StopTrainingJob", {"TrainingJobName": "job-1"})]


def test_a_reader_that_ends_is_no_error(job):
    script = "from lightning_sm.__main__ import main; import sys; sys.exit(main(['jobs', '--json']))"
    listing = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | true', sys.executable, script],
        stderr=subprocess.PIPE, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (listing.returncode, listing.stderr) == (141, "")


@pytest.mark.parametrize(("state", "status"), [("InProgress", 0), ("Stopping", 0), ("Stopped", 1), ("Failed", 1)])
def test_the_log_of_a_job_that_goes_on_is_no_failure(job, answers, state, status):
    def answer(call, operation, arguments):
        return {**call(), "TrainingJobStatus": state} if operation == "DescribeTrainingJob" else call()

    answers(answer)
    shown, lines = followed(job, wait=False)
    assert (shown, lines[-1]) == (status, f"job-1: {state}")


def test_an_interrupt_detaches_and_says_how_to_come_back(job, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    assert followed(job, write=interrupt)[0] == 130
    assert "lightning-sm logs job-1 --follow" in capsys.readouterr().err


def test_the_commands(job, run):
    write(job, "trained")
    assert "[algo-1] trained" in run("logs", "job-1").out
    assert [each["name"] for each in json.loads(run("jobs", "--json").out)] == ["job-1"]
    assert "no training jobs and no tuning jobs" in run("jobs", "--contains", "none").err
    shown = run("logs", "none")
    assert (shown.status, shown.out) == (1, "")
    assert "There is no training job and no tuning job 'none'" in shown.err
    assert "required: name" in run("stop").err
    assert "limit" in run("jobs", "--limit", "0").err
    assert "network" not in run("jobs", "--limit", "0").err
    job.client("logs").delete_log_group(logGroupName=GROUP)
    assert "job-1: Completed" in run("logs", "job-1").out


@pytest.fixture
def put_model(job):
    """Writes the archive of the job's model, with files by their names, and links."""

    def put(links=(), **files):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
            for name, kind, target in links:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, target
                archive.addfile(entry)
        job.client("s3").put_object(Bucket="bucket", Key="job-1/output/model.tar.gz", Body=buffer.getvalue())

    return put


def test_artifacts_are_unpacked_with_links_that_are_files_and_replace_nothing(job, put_model, run, project):
    links = [
        ("last.ckpt", tarfile.LNKTYPE, "best.ckpt"),
        ("best", tarfile.SYMTYPE, "best.ckpt"),
        ("outside", tarfile.LNKTYPE, "/etc/hostname"),
        ("password", tarfile.LNKTYPE, "best"),
    ]
    put_model(links, **{"best.ckpt": "weights", "code/inference.py": "x"})
    shown = run("artifacts", "job-1", "--json")
    files = {str(path.relative_to(project)): path for path in (project / "job-1").rglob("*") if path.is_file()}
    assert sorted(json.loads(shown.out)["files"]) == sorted(files)
    content = {"job-1/best.ckpt": "weights", "job-1/last.ckpt": "weights", "job-1/code/inference.py": "x"}
    assert {name: path.read_text() for name, path in files.items()} == content
    assert (
        "Not unpacked, since they are symbolic links or no files of the archive: best, outside, password\n" in shown.err
    )
    files["job-1/best.ckpt"].write_text("mine")
    assert "is there already" in run("artifacts", "job-1").err
    assert files["job-1/best.ckpt"].read_text() == "mine"


def test_a_model_that_is_not_packed_and_an_output_that_is_missing(job, run, project, answers):
    address = "s3://bucket/job-1/output/model/"

    def answer(call, operation, arguments):
        found = call()
        return {**found, "ModelArtifacts": {"S3ModelArtifacts": address}} if operation[:8] == "Describe" else found

    answers(answer)
    assert f"There is nothing at {address}" in run("artifacts", "job-1").err
    for name in ("", "best.ckpt", "code/inference.py"):
        job.client("s3").put_object(Bucket="bucket", Key=f"job-1/output/model/{name}", Body=b"x")
    assert "output/output.tar.gz failed" in run("artifacts", "job-1", "--output").err
    files = ["job-1/best.ckpt", "job-1/code/inference.py"]
    assert json.loads(run("artifacts", "job-1", "--json").out)["files"] == files
    assert all((project / name).read_bytes() == b"x" for name in files)
    assert "is there already" in run("artifacts", "job-1").err


def test_archives_that_are_none_or_reach_outside(job, put_model, run, project):
    put_model(**{"../outside": "x"})
    assert "lies outside" in run("artifacts", "job-1").err
    assert not (project / "outside").exists()
    put_model(model=f"{random.Random(1).getrandbits(99_999):x}")
    place = {"Bucket": "bucket", "Key": "job-1/output/model.tar.gz"}
    half = job.client("s3").get_object(**place)["Body"].read()[:4000]
    for content in (b"no archive", half):
        job.client("s3").put_object(**place, Body=content)
        assert "cannot be unpacked" in run("artifacts", "job-1").err
    job.client("s3").delete_object(**place)
    shown = run("artifacts", "job-1")
    assert (shown.status, "s3:GetObject" in shown.err) == (1, True)
    hint = "HINT: The job wrote nothing there, or the archive was deleted. Its checkpoints are at s3://bucket/job-1/"
    assert hint in shown.err
