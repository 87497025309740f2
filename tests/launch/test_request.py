"""Requests equal, key by key, those that SageMaker's SDK v2 sends for the same job."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from lightning_sm.launch import Account, LaunchError, create_job_request, settings_of

HERE = Path(__file__).parent
_ALL = json.loads((HERE / "jobs.json").read_text())
JOBS = {name: job for name, job in _ALL.items() if "tuner" not in job}
TUNING_JOBS = {name: job for name, job in _ALL.items() if "tuner" in job}
RECORDED = json.loads((HERE / "recorded.json").read_text())
ROLE = "arn:aws:iam::123456789012:role/Trainer"
ACCOUNT = Account("us-east-1", "bucket")


def request_of(name="job-1", metrics=(), **given):
    given = {"role": ROLE, "image": "pytorch-2.8-gpu", "channels": {"training": "s3://data/train"}, **given}
    if "instance_groups" not in given:
        given.setdefault("instance_type", "ml.g5.xlarge")
    return create_job_request(settings_of(given), ACCOUNT, name=name, metric_definitions=metrics)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_equal_to_what_the_sdk_sends(name):
    job = JOBS[name]
    made = request_of(job["name"], job["sdk"].get("metric_definitions", ()), auto=False, **job["launch"]).as_body()
    entry = {key: made["AlgorithmSpecification"].pop(key) for key in ("ContainerEntrypoint", "ContainerArguments")}
    assert made == RECORDED[name]
    assert entry["ContainerEntrypoint"][0] == "/bin/bash"
    assert any("start_with_right_hostname.sh train" in line for line in entry["ContainerArguments"])


@pytest.mark.jobs
def test_the_recorded_requests_are_those_of_the_sdk():
    python = os.environ.get("LIGHTNING_SM_SDK_V2_PYTHON")
    if python is None:
        pytest.skip("LIGHTNING_SM_SDK_V2_PYTHON names no Python with sagemaker<3")
    finished = subprocess.run(
        [python, str(HERE / "record_sdk_v2.py"), "--print"], capture_output=True, text=True, timeout=240, check=True
    )
    assert json.loads(finished.stdout[finished.stdout.index("{") :]) == RECORDED


def test_groups_may_have_checkpoints_which_sdk_v2_refuses():
    body = request_of(instance_groups=["head=1:ml.m5.large", "workers=2:ml.g5.xlarge"], distribution="mpi").as_body()
    assert body["CheckpointConfig"] == {"S3Uri": "s3://bucket/job-1/checkpoints"}
    assert "InstanceType" not in body["ResourceConfig"]


def test_what_the_sdk_has_no_argument_for():
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"
    body = request_of(
        instance_type=["ml.p5.48xlarge:1", "ml.p4d.24xlarge:2"],
        max_pending="2h",
        mlflow_arn=arn,
        mlflow_experiment="cifar",
        forward_sigterm=False,
        training_plan="arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan-1",
    ).as_body()
    plan = {"TrainingPlanArns": ["arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan-1"]}
    assert body["ResourceConfig"]["InstancePreferences"] == [
        {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, **plan},
        {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, **plan},
    ]
    assert body["StoppingCondition"]["MaxPendingTimeInSeconds"] == 7200
    assert body["MlflowConfig"] == {
        "MlflowResourceArn": arn,
        "MlflowExperimentName": "cifar",
        "MlflowRunName": "job-1",
    }
    assert "ContainerEntrypoint" not in body["AlgorithmSpecification"]


def test_each_job_has_a_checkpoint_prefix_of_its_own():
    first, second = request_of("job-1").as_body(), request_of("job-2").as_body()
    assert first["CheckpointConfig"] != second["CheckpointConfig"]
    assert request_of(checkpoints="s3://mine/shared").as_body()["CheckpointConfig"] == {"S3Uri": "s3://mine/shared"}
    assert "CheckpointConfig" not in request_of(checkpoints="none").as_body()


def test_spot_waits_a_day_longer_than_it_runs():
    limits = request_of(spot=True, max_run="2h").as_body()["StoppingCondition"]
    assert limits == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 7200 + 86_400}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image": "pytorch-9.9-gpu"}, r"no image of AWS.*pytorch-2\.8\.0-gpu"),
        ({"image": "torch"}, "no image of AWS"),
        ({"instance_type": []}, "no --instance-type"),
        ({"instance_type": "g5.xlarge"}, r"begin with ml\."),
        ({"instance_type": ["ml.g5.xlarge"], "instance_groups": ["a=1:ml.g5.xlarge"]}, "exclude each other"),
        ({"instance_groups": ["a:ml.g5.xlarge"]}, "NAME=COUNT:TYPE"),
        ({"channels": {"training": "none"}}, "The channel none has no files on this machine"),
        ({"channels": {"training": "gs://b/x"}}, "or a local folder"),
        ({"channels": {"training": {"uri": "s3://b/x", "moed": "File"}}}, "uri, mode, sharded"),
        ({"channels": {"training": {"uri": 1}}}, "The channel 'training'"),
        ({"max_run": "soon"}, r"--max-run: 'soon' is not a duration"),
        ({"max_wait": "2h"}, "--max-wait is for spot"),
        ({"spot": True, "max_run": "2h", "max_wait": "1h"}, "shorter than --max-run"),
        ({"distribution": "horovod"}, "torch_distributed, mpi"),
        ({"instances": "2"}, "--instances is '2'"),
        ({"spot": "yes"}, "--spot is 'yes'"),
        ({"environment": {"A": True}}, "--env A is True"),
        ({"environment": ["A=1"]}, "--env is"),
        ({"instnaces": 2}, "Did you mean 'instances'"),
        ({"network_isolation": True, "channels": {"code": "s3://b/x"}}, "Name your channel otherwise"),
    ],
)
def test_settings_that_mean_nothing(given, message):
    with pytest.raises(LaunchError, match=message):
        request_of(**given)


def test_an_unchanged_program_takes_its_world_from_the_job_unless_told_otherwise():
    assert request_of().as_body()["Environment"] == {"LIGHTNING_SM_AUTO": "1"}
    assert request_of(environment={"LIGHTNING_SM_AUTO": 0}).as_body()["Environment"] == {"LIGHTNING_SM_AUTO": "0"}
    assert "Environment" not in request_of(auto=False).as_body()


def test_numbers_of_environment_and_durations_may_be_numbers():
    body = request_of(environment={"OMP_NUM_THREADS": 4}, max_run=3600, auto=False).as_body()
    assert body["Environment"] == {"OMP_NUM_THREADS": "4"}
    assert body["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}


def test_images_of_china():
    from lightning_sm.launch import find_image

    assert find_image("pytorch-2.8-cpu", "cn-north-1").uri == (
        "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.8.0-cpu-py312"
    )
    with pytest.raises(LaunchError, match="region 'moon-1'"):
        find_image("pytorch-2.8-cpu", "moon-1")
