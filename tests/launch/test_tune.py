"""``lightning-sm tune``: its words, what it refuses, and a tuning job at a real server with AWS's API (moto)."""

import json

import pytest

from lightning_sm.__main__ import main
from lightning_sm.launch import LaunchError, check_tuning_request, tuning_settings_of
from lightning_sm.launch._watch import follow_tuning
from lightning_sm.launch._words import read_words
from tests.launch.test_check import NET
from tests.launch.test_send import CHANNEL, OPTIONS
from tests.launch.test_tuning import tuning_of

pytest.importorskip("botocore", reason="the extra launch is not installed")
pytestmark = pytest.mark.services
SEARCH = ("--objective", "val_acc", "--direction", "maximize", "--max-jobs", "4")
LR = ("--range", "model.lr={min: 1e-5, max: 1e-1, scale: log}")


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    folder = tmp_path / "my_project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "none"))
    (folder / "train.py").write_text("print(1)")
    return folder


def tune(*words, capsys):
    code = main(["tune", *OPTIONS, *CHANNEL, *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_words_stand_above_the_file(source):
    (source / "launch.yaml").write_text(
        "image: pytorch-2.8-gpu\ntuning:\n  objective: val_acc\n  direction: maximize\n  max-jobs: 20\n"
        "  early_stopping: off\n  warm_start: [parent]\n  warm_start_type: transfer\n"
        "  ranges:\n    model.lr: {min: 1e-5, max: 1e-1, scale: log}\n    model.optimizer: [adam, sgd]\n"
    )
    read = read_words(
        ["--max-jobs", "3", "--range", "n={min: 1, max: 3, type: integer}", "--draw", "7", "fit", "--a", "1e-3"],
        command="tune",
    )
    assert (read.tuning.objective, read.tuning.max_jobs, read.tuning.early_stopping) == ("val_acc", 3, "off")
    assert read.tuning.ranges == {
        "model.lr": {"min": "1e-5", "max": "1e-1", "scale": "log"},
        "model.optimizer": ["adam", "sgd"],
        "n": {"min": 1, "max": 3, "type": "integer"},
    }
    assert (read.tuning.warm_start, read.draw, read.hyperparameters) == (["parent"], 7, {"a": 0.001})
    launched = read_words([])
    assert (launched.settings.image, launched.tuning) == ("pytorch-2.8-gpu", None)
    (source / "launch.yaml").write_text("tuning: [a]")
    with pytest.raises(LaunchError, match=r"`tuning` is \['a'\]"):
        read_words([], command="tune")
    with pytest.raises(SystemExit):
        read_words(["--objective", "a"])


def test_help_lists_options_of_both(capsys):
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: lightning-sm tune [options]")
    assert "--early-stopping TEXT" in shown
    assert "--instance-type TEXT" in shown
    assert "None" not in shown


def test_a_tuning_job_is_created_with_its_source(aws, capsys):
    code, out, err = tune(*SEARCH, *LR, "--json", "fit", "--trainer.max_epochs", "5", capsys=capsys)
    assert code == 0, err
    shown = json.loads(out)
    assert shown["name"].startswith("my-project-2")
    assert len(shown["name"]) <= 32
    assert f"#/hyper-tuning-jobs/{shown['name']}" in shown["console"]
    job = aws.client("sagemaker").describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=shown["name"])
    assert job["HyperParameterTuningJobArn"] == shown["arn"]
    definition = job["TrainingJobDefinition"]
    assert definition["StaticHyperParameters"]["trainer.max_epochs"] == "5"
    assert [each["Name"] for each in definition["AlgorithmSpecification"]["MetricDefinitions"]] == ["val_acc"]
    address = json.loads(definition["StaticHyperParameters"]["sagemaker_submit_directory"])
    assert aws.client("s3").head_object(Bucket="bucket", Key=address.partition("bucket/")[2])["ContentLength"] > 100


def test_the_dry_run_is_what_is_sent(aws, capsys):
    words = (
        *SEARCH,
        *LR,
        "--name",
        "tune-1",
        "--metric",
        "loss",
        "--warm-start",
        "old",
        "--warm-start-type",
        "transfer",
    )
    code, out, _ = tune(*words, "--dry-run", capsys=capsys)
    printed = json.loads(out)
    assert code == 0
    assert aws.client("sagemaker").list_hyper_parameter_tuning_jobs()["HyperParameterTuningJobSummaries"] == []
    assert "Contents" not in aws.client("s3").list_objects_v2(Bucket="bucket")
    assert tune(*words, capsys=capsys)[0] == 0
    sent = aws.client("sagemaker").describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="tune-1")
    assert {key: sent[key] for key in printed} == printed
    drawn = tune(*words, "--draw", "1", capsys=capsys)[1]
    assert json.loads(drawn)["TrainingJobName"].startswith("tune-1-001-")


def test_a_name_that_is_taken_uploads_nothing(aws, capsys):
    assert tune(*SEARCH, *LR, "--name", "tune-1", capsys=capsys)[0] == 0
    before = aws.client("s3").list_objects_v2(Bucket="bucket")["Contents"]
    code, _, err = tune(*SEARCH, *LR, "--name", "tune-1", capsys=capsys)
    assert (code, aws.client("s3").list_objects_v2(Bucket="bucket")["Contents"]) == (1, before)
    assert "There is a tuning job 'tune-1' already (Completed)" in err


def test_wait_shows_numbers_and_the_best_job(aws, capsys):
    code, out, _ = tune(*SEARCH, *LR, "--name", "tune-1", "--wait", capsys=capsys)
    assert code == 0
    assert out.splitlines()[1:] == [
        "Training jobs of 4: 1 completed",
        "Best so far: FakeTrainingJobName, Accuracy=1 (string=TunedHyperParameters)",
        "Tuning job tune-1: Completed",
    ]


def states(monkeypatch, *answers):
    """Let the server answer these; it completes a tuning job at once."""
    from botocore.client import BaseClient

    left, original = list(answers), BaseClient._make_api_call

    def answer(client, operation, arguments):
        if operation != "DescribeHyperParameterTuningJob":
            return original(client, operation, arguments)
        found = left.pop(0)
        if isinstance(found, BaseException):
            raise found
        return {"HyperParameterTuningJobConfig": {"ResourceLimits": {"MaxNumberOfTrainingJobs": 9}}, **found}

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)


def best(value):
    metric = {"MetricName": "val_acc", "Value": value}
    return {
        "TrainingJobName": f"tune-1-00{value}",
        "TunedHyperParameters": {"model.lr": "0.1", "a": '"x"'},
        "FinalHyperParameterTuningJobObjectiveMetric": metric,
    }


def test_lines_are_written_when_something_has_changed(aws, monkeypatch):
    from botocore.exceptions import ClientError

    throttled = ClientError({"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, "x")
    running = {"HyperParameterTuningJobStatus": "InProgress"}
    counted = {**running, "TrainingJobStatusCounters": {"InProgress": 2, "Completed": 0, "NonRetryableError": 1}}
    failed = {"HyperParameterTuningJobStatus": "Failed", "FailureReason": "No objective metrics found"}
    first, second = {**counted, "BestTrainingJob": best(1)}, {**counted, "BestTrainingJob": best(2)}
    states(
        monkeypatch,
        running,
        throttled,
        counted,
        counted,
        {**counted, "BestTrainingJob": {}},
        first,
        second,
        second,
        failed,
    )
    lines = []
    assert follow_tuning(aws, "tune-1", poll_seconds=0.01, write=lines.append) == "Failed"
    assert lines == [
        "Training jobs of 9: none yet",
        "Training jobs of 9: 2 in progress, 1 failed",
        'Best so far: tune-1-001, val_acc=1 (a="x", model.lr=0.1)',
        'Best so far: tune-1-002, val_acc=2 (a="x", model.lr=0.1)',
        "Training jobs of 9: none yet",
        "Tuning job tune-1: Failed. No objective metrics found",
    ]


def test_an_interrupt_detaches(aws, monkeypatch, capsys):
    from botocore.exceptions import ClientError

    missing = ClientError({"Error": {"Code": "ResourceNotFound", "Message": "not found"}}, "x")
    states(monkeypatch, missing, KeyboardInterrupt())
    code, _, err = tune(*SEARCH, *LR, "--name", "tune-1", "--wait", capsys=capsys)
    assert code == 130
    assert "lightning-sm logs tune-1 --follow" in err


def test_denied(aws, monkeypatch, capsys):
    from botocore.exceptions import ClientError

    states(monkeypatch, ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "x"))
    code, _, err = tune(*SEARCH, *LR, capsys=capsys)
    assert code == 1
    assert "need the permission sagemaker:DescribeHyperParameterTuningJob" in err


def test_a_key_that_the_file_fixes_is_refused_before_anything_is_sent(aws, capsys, source):
    (source / "launch.yaml").write_text("hyperparameters: {model.lr: 0.1}")
    code, _, err = tune(*SEARCH, *LR, capsys=capsys)
    assert code == 1
    assert "--range model.lr and the hyperparameter model.lr = 0.1 set one key" in err
    assert "Contents" not in aws.client("s3").list_objects_v2(Bucket="bucket")


@pytest.mark.parametrize(
    ("tuning", "given", "message"),
    [
        ({}, {"role": ""}, "no --role"),
        ({}, {"name": "a" * 33}, "HyperParameterTuningJobName has 33 characters, more than 32"),
        ({}, {"name": "a_b"}, "HyperParameterTuningJobName is 'a_b'"),
        ({}, {"entry_point": "none.py"}, r"none\.py is not in --source-dir"),
        ({}, {"hyperparameters": {f"a{k}": k for k in range(94)}}, "HyperParameters has 101 entries, more than 100"),
        (
            {},
            {"metrics": [{"Name": n, "Regex": "x"} for n in ("val_acc", *map(str, range(20)))]},
            "--metric: there are 21",
        ),
        ({"ranges": {f"a{k}": [1, 2] for k in range(31)}}, {}, "--range: there are 31.*30 at most"),
        ({"ranges": {"a": list(range(31))}}, {}, "Values has 31 entries, more than 30"),
        ({"ranges": {"a": ["x" * 256, "y"]}}, {}, "has 258 characters, more than 256"),
        ({"ranges": {"a" * 257: [1, 2]}}, {}, "Name has 257 characters, more than 256"),
        ({"max_jobs": 751}, {}, "--max-jobs: there are 751.*Bayesian has 750"),
        ({"max_jobs": 10_001, "strategy": "Random"}, {}, "Random has 10000"),
        ({"max_parallel_jobs": 101}, {}, "--max-parallel-jobs: there are 101"),
        ({"max_parallel_jobs": 0}, {}, "MaxParallelTrainingJobs has 0, less than 1"),
        ({"max_tuning_time": "1m"}, {}, "MaxRuntimeInSeconds has 60, less than 120"),
        ({"warm_start": list("abcdef"), "warm_start_type": "transfer"}, {}, "has 6 entries, more than 5"),
        (
            {},
            {"instance_type": [f"ml.g5.{n}xlarge:1" for n in ("", 2, 4, 8, 12, 16, 24)]},
            "InstanceConfigs has 7 entries",
        ),
    ],
)
def test_what_may_not_be_sent(tuning, given, message):
    searched = {"objective": "val_acc", "direction": "maximize", **tuning}
    with pytest.raises(LaunchError, match=message):
        check_tuning_request(tuning_of(tuning=tuning, **given), tuning_settings_of(searched))


def test_secrets_are_named(aws, capsys):
    secret = "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567"
    code, _, err = tune(*SEARCH, *LR, "--env", secret, "--dry-run", capsys=capsys)
    assert code == 0
    assert "WANDB_API_KEY looks like a secret" in err


@pytest.mark.slow
def test_an_objective_and_a_range_that_the_project_does_not_know(aws, capsys, source):
    (source / "net.py").write_text(NET)
    (source / "train.py").write_text("from lightning_sm.cli import main\nmain()\n")
    words = ("--dry-run", "fit", "--model", "net.Net")
    code, _, err = tune(*SEARCH, "--range", "model.tag=[a, b]", *words, capsys=capsys)
    assert code == 1
    assert "--objective is 'val_acc', and net.Net logs loss, val_loss" in err
    code, _, err = tune(*SEARCH, *LR, *words, capsys=capsys)
    assert code == 1
    assert "model.lr" in err


def test_spot_instances_need_no_place_for_checkpoints():
    searched = {"objective": "val_acc", "direction": "maximize"}
    request = tuning_of(spot=True)
    check_tuning_request(request, tuning_settings_of(searched))
    assert request.as_body()["TrainingJobDefinition"]["EnableManagedSpotTraining"] is True
