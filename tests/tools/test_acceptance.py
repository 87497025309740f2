"""The six jobs that a real account is to accept: what they would be, what is found wrong, and two of them rehearsed."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests.helpers.rehearsal import needs
from tests.launch.conftest import ROLE, refusal
from tools.acceptance.__main__ import main
from tools.acceptance.checks import problems_of
from tools.acceptance.jobs import STOP_AT, Expected
from tools.acceptance.project.regression import loss_of, trained
from tools.acceptance.seen import Seen, SeenTraining

WORDS = ("--role", ROLE, "--bucket", "bucket", "--region", "us-east-1")
EXPECTED = Expected(hosts=2, processes=1)


@pytest.mark.full
def test_dry_run_shows_all_that_would_be_sent(capsys):
    pytest.importorskip("boto3", reason="the extra launch is not installed")
    assert main([*WORDS, "--dry-run"]) == 0
    shown = {job["title"]: job for job in json.loads(capsys.readouterr().out)}
    assert list(shown) == ["none", "torchrun", "mpi", "smddp", "spot", "tuning"]
    assert {job["operation"] for job in shown.values()} == {"CreateTrainingJob", "CreateHyperParameterTuningJob"}
    sent = {title: job["request"] for title, job in shown.items()}
    assert sent["torchrun"]["ResourceConfig"]["InstanceCount"] == 2
    assert sent["mpi"]["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert "2.5.1-gpu" in sent["smddp"]["AlgorithmSpecification"]["TrainingImage"]
    assert sent["spot"]["EnableManagedSpotTraining"]
    assert shown["spot"]["stop_at"] == STOP_AT
    assert sent["tuning"]["HyperParameterTuningJobConfig"]["Strategy"] == "Grid"
    assert main([*WORDS, "--jobs", "mpi", "--dry-run"]) == 0
    assert [job["title"] for job in json.loads(capsys.readouterr().out)] == ["mpi"]


def said(rank, **changes):
    found = {
        "rank": rank,
        "world_size": 2,
        "local_rank": 0,
        "host": f"algo-{rank + 1}",
        "gpus": 0,
        "backend": "gloo",
        "step": 24,
        "weights": trained(24, 0.05),
        "versions": {},
        **changes,
    }
    return f"[algo-{rank + 1}] acceptance: {json.dumps(found)}"


SEEN = SeenTraining(
    name="job",
    status="Completed",
    failure_reason="",
    lr=None,
    log=("[algo-1] metrics at step 24, epoch 23: val_loss=0.1", said(0), said(1)),
    metrics={"val_loss": loss_of(trained(24, 0.05))},
    checkpoints=("job/checkpoints/fit-0/step-20.json", "job/checkpoints/fit-0/step-24.json"),
    model=tuple(trained(24, 0.05)),
    instances=("ml.m5.xlarge", 2),
    billable_seconds=90,
)


@pytest.mark.parametrize(
    ("aspect", "changes"),
    [
        ("status", {"status": "Stopped"}),
        ("failure reason", {"failure_reason": "ExitCode 1"}),
        ("ranks", {"log": (*SEEN.log[:1], said(0, world_size=1), said(0, world_size=1, host="algo-2"))}),
        ("ranks", {"log": (*SEEN.log[:2], said(1, host="algo-1"))}),
        ("ranks", {"log": tuple(line.replace("gloo", "mpi") for line in SEEN.log)}),
        ("ranks", {"log": (*SEEN.log[:2], said(1, weights=trained(24, 0.051)))}),
        ("ranks", {"log": (*SEEN.log[:1], said(0, step=12), said(1, step=12))}),
        ("ranks", {"log": SEEN.log[:2]}),
        ("log", {"log": tuple(line.replace("[algo-2]", "[algo-1]") for line in SEEN.log)}),
        ("log", {"log": SEEN.log[1:]}),
        ("metrics", {"metrics": {}}),
        ("metrics", {"metrics": {"val_loss": 0.5}}),
        ("checkpoints", {"checkpoints": SEEN.checkpoints[:1]}),
        ("model", {"model": None}),
        ("model", {"model": tuple(trained(20, 0.05))}),
    ],
)
def test_what_is_wrong_is_found(aspect, changes):
    assert problems_of(EXPECTED, Seen((replace(SEEN, **changes),)))[aspect]


def test_nothing_is_wrong_with_a_right_job_and_one_that_must_fail_says_why():
    assert set(problems_of(EXPECTED, Seen((SEEN,))).values()) == {None}
    failing = replace(EXPECTED, status="Failed", failure="on purpose")
    seen = replace(SEEN, status="Failed", failure_reason="RuntimeError: on purpose", model=None)
    assert set(problems_of(failing, Seen((seen,))).values()) == {None}
    assert problems_of(failing, Seen((replace(seen, failure_reason="ExitCode 1"),)))["failure reason"]


def test_the_best_of_a_search_has_the_lowest_loss():
    tuned = replace(EXPECTED, trainings=2)
    better = replace(
        SEEN,
        name="better",
        lr=0.1,
        log=(SEEN.log[0], *(said(rank, weights=trained(24, 0.1)) for rank in (0, 1))),
        metrics={"val_loss": loss_of(trained(24, 0.1))},
        model=tuple(trained(24, 0.1)),
    )
    assert set(problems_of(tuned, Seen((SEEN, better), "better")).values()) == {None}
    assert problems_of(tuned, Seen((SEEN, better), "job"))["metrics"]
    assert problems_of(tuned, Seen((better,), "better"))["status"]


@pytest.mark.full
def test_a_call_that_fails_loses_no_results_of_other_jobs(aws, capsys, monkeypatch):
    throttled = refusal("ThrottlingException", "Rate exceeded")

    def run(job, *_):
        if job.title == "torchrun":
            raise throttled
        return Seen((replace(SEEN, name=job.request.name),))

    monkeypatch.setattr("tools.acceptance.__main__.run_job", run)
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", Mock(side_effect=throttled))
    assert main([*WORDS, "--jobs", "none", "torchrun"]) == 1
    shown = capsys.readouterr()
    rows = {line.split(" | ")[0].strip("| "): line for line in shown.out.splitlines()}
    assert "| 180 s |" in rows["none"]
    assert "| WRONG |" in rows["torchrun"]
    assert "torchrun: status: ClientError: " in shown.out
    left = [line for line in shown.err.splitlines() if "not removed: " in line]
    assert ["objects of acceptance-none-" in line for line in left[:1]] == [True]
    assert left[-1] == "torchrun: not removed: what it made, because it was not seen"


@pytest.fixture
def service(aws, tmp_path, monkeypatch):
    pytest.importorskip("sagemaker_training", reason="the extra rehearse is not installed")
    from tests.tools.sagemaker_service import Service

    service = Service(aws, tmp_path, STOP_AT, monkeypatch)
    yield service
    service.close()


@pytest.mark.full
@pytest.mark.timeout(3600)
@needs("netns", torch=True)
def test_jobs_that_are_sent_run_and_are_accepted(service, capfd):
    """One that is stopped, and a search of two; tests/toolkits has the launchers of the others."""
    titles = ("spot", "tuning")
    status = main([*WORDS, "--jobs", *titles])
    shown = capfd.readouterr()
    assert status == 0, f"{shown.out}\n{shown.err[-6000:]}"
    rows = [line.split(" | ") for line in shown.out.splitlines() if "| ok | " in line]
    assert [row[0].strip("| ") for row in rows] == list(titles)
    assert "WRONG" not in shown.out
    # Nothing of the jobs is left.
    assert service.session.client("s3").list_objects_v2(Bucket="bucket")["KeyCount"] == 0
    streams = service.session.client("logs").describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs")
    assert streams["logStreams"] == []
    assert len(service.deleted) == 3
    assert len(service.stopped) == 1
