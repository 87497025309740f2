"""Requests equal, key by key, those that SageMaker's SDK v2 sends for the same job; what the API would refuse."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from lightning_sm import metric_definitions
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm.errors import LightningSMError
from lightning_sm.launch import (
    Account,
    LaunchError,
    check_limits,
    create_job_request,
    create_tuning_request,
    draw,
    find_image,
    settings_of,
    tuning_settings_of,
)
from tests.launch.conftest import ROLE

HERE = Path(__file__).parent
JOBS = json.loads((HERE / "jobs.json").read_text())
RECORDED = json.loads((HERE / "recorded.json").read_text())
ACCOUNT = Account("us-east-1", "bucket")
_LIMITS = "HyperParameterTuningJobConfig.ResourceLimits"
LR = {"model.lr": {"min": "1e-5", "max": 0.1, "scale": "log"}}


def request_of(name="job-1", tuning=None, **given):
    given = {"role": ROLE, "image": "pytorch-2.8-gpu", "channels": {"training": "s3://data/train"}, **given}
    if "instance_groups" not in given:
        given.setdefault("instance_type", "ml.g5.xlarge")
    if tuning is None:
        return create_job_request(settings_of(given), ACCOUNT, name=name)
    searched = tuning_settings_of({"objective": "val_acc", "direction": "maximize", "ranges": LR, **tuning})
    return create_tuning_request(settings_of(given), searched, ACCOUNT, name=name)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_equal_to_what_the_sdk_sends(name):
    job = JOBS[name]
    body = request_of(job["name"], job.get("tuning"), **job["launch"]).as_body()
    # The SDK's own archive is not packed again, and so is at another address.
    sent = json.loads(json.dumps(RECORDED[name]).replace("/source/sourcedir.tar.gz", "/launch/sourcedir.tar.gz"))
    for each in sent.get("TrainingJobDefinition", sent)["AlgorithmSpecification"].get("MetricDefinitions", ()):
        (each["Regex"],) = (own["Regex"] for own in metric_definitions(each["Name"]))
    definition = body.get("TrainingJobDefinition", body)
    assert definition["Environment"].pop("LIGHTNING_SM_AUTO") == "1"
    if not definition["Environment"]:
        del definition["Environment"]
    if "tuning" in job:
        # The SDK reads them again when it attaches to the job.
        for own in ("sagemaker_estimator_class_name", "sagemaker_estimator_module"):
            del sent["TrainingJobDefinition"]["StaticHyperParameters"][own]
    else:
        entry = {key: body["AlgorithmSpecification"].pop(key) for key in ("ContainerEntrypoint", "ContainerArguments")}
        assert entry["ContainerEntrypoint"][0] == "/bin/bash"
        assert any("start_with_right_hostname.sh train" in line for line in entry["ContainerArguments"])
    assert body == sent


@pytest.mark.full
def test_the_recorded_requests_are_those_of_the_sdk():
    python = os.environ.get("LIGHTNING_SM_SDK_V2_PYTHON")
    if python is None:
        pytest.skip("LIGHTNING_SM_SDK_V2_PYTHON names no Python with sagemaker<3")
    finished = subprocess.run(
        [python, str(HERE / "record_sdk_v2.py"), "--print"], capture_output=True, text=True, timeout=240, check=True
    )
    assert json.loads(finished.stdout[finished.stdout.index("{") :]) == RECORDED


def test_what_the_sdk_has_no_argument_for():
    request = request_of(
        forward_sigterm=False,
        environment={"LIGHTNING_SM_AUTO": 0, "OMP_NUM_THREADS": 4},
        max_run=3600,
        volume_size=0,
        set={
            "ResourceConfig": {
                "InstanceType": None,
                "InstanceCount": None,
                "InstancePreferences": [{"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}],
            },
            "StoppingCondition.MaxPendingTimeInSeconds": 7200,
            "MlflowConfig.MlflowResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1",
            "TrainingJobName": "other",
        },
    )
    body = request.as_body()
    assert request.name == body["TrainingJobName"] == "other"
    assert body["ResourceConfig"] == {
        "InstancePreferences": [{"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}],
    }
    assert body["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxPendingTimeInSeconds": 7200}
    assert body["MlflowConfig"]["MlflowResourceArn"].endswith("app-1")
    assert body["Environment"] == {"LIGHTNING_SM_AUTO": "0", "OMP_NUM_THREADS": "4"}
    assert "ContainerEntrypoint" not in body["AlgorithmSpecification"]


@pytest.mark.parametrize("field", ["InputDataConfig", "HyperParameters"])
def test_a_removed_field_of_an_isolated_job_has_what_brings_the_source(field):
    body = request_of(set={field: None, "EnableNetworkIsolation": True}).as_body()
    assert [each["ChannelName"] for each in body["InputDataConfig"]][-1] == "code"
    assert body["HyperParameters"]["sagemaker_submit_directory"] == '"/opt/ml/input/data/code/sourcedir.tar.gz"'


def test_places_of_checkpoints_and_the_time_limit_of_spot_instances():
    assert request_of("job-2").as_body()["CheckpointConfig"] == {"S3Uri": "s3://bucket/job-2/checkpoints"}
    assert "CheckpointConfig" not in request_of(checkpoints="none").as_body()
    # The training jobs of a tuning job would share a prefix.
    assert "CheckpointConfig" not in request_of(tuning={"max_jobs": 2}).as_body()["TrainingJobDefinition"]
    groups = request_of(instance_groups=["head=1:ml.m5.large", "workers=2:ml.g5.xlarge"], distribution="mpi").as_body()
    assert groups["CheckpointConfig"] == {"S3Uri": "s3://bucket/job-1/checkpoints"}  # which SDK v2 refuses
    limits = request_of(spot=True, max_run="2h").as_body()["StoppingCondition"]
    assert limits == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 7200 + 86_400}


def test_a_drawn_job_is_what_the_service_makes_of_the_tuning_job():
    ranges = {
        **LR,
        "batch": {"min": 16, "max": 18, "type": "integer"},
        "momentum": {"min": 0.5, "max": 0.99, "scale": "reverse_log"},
        "optimizer": ["adam", "1e-3", 16, True, None],
    }
    fixed = {"trainer.max_epochs": 3, "version": "5"}
    given = {"HyperParameterTuningJobConfig.ParameterRanges.AutoParameters": [{"Name": "width", "ValueHint": "64"}]}
    request = request_of("tune-1", {"ranges": ranges, "max_jobs": 9}, hyperparameters=fixed, set=given)
    found = [draw(request, seed) for seed in range(200)]
    assert found[7] == draw(request, 7)
    assert re.fullmatch(r"tune-1-001-[0-9a-f]{8}", found[7].name)
    static = request.as_body()["TrainingJobDefinition"]["StaticHyperParameters"]
    drawn = [each.as_body()["HyperParameters"] for each in found]
    assert all({key: each[key] for key in static} == static for each in drawn)
    assert {each["_tuning_objective_metric"] for each in drawn} == {"val_acc"}
    assert {each["batch"] for each in drawn} == {"16", "17", "18"}
    assert {each["width"] for each in drawn} == {"64"}
    # Values of lists keep their types, which SDK v2 makes text.
    assert {each["optimizer"] for each in drawn} == {'"adam"', "0.001", "16", "true", "null"}
    for name, low, middle, high in (("model.lr", 1e-5, 1e-3, 0.1), ("momentum", 0.5, 0.93, 0.99)):
        values = [float(each[name]) for each in drawn]
        assert low <= min(values) <= max(values) <= high
        assert 0.4 < sum(value < middle for value in values) / len(values) < 0.6
    read = Hyperparameters.from_file(drawn[0], "hyperparameters.json")
    assert read.values["model.lr"] == float(drawn[0]["model.lr"])
    assert (read.values["trainer.max_epochs"], read.values["version"], read.objective) == (3, "5", "val_acc")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image": "pytorch-9.9-gpu"}, r"no image of AWS.*pytorch-2\.8\.0-gpu"),
        ({"image": "torch"}, "no image of AWS"),
        ({"instance_groups": ["a=1:ml.g5.xlarge"], "instance_type": "ml.g5.xlarge"}, "leave --instance-type and"),
        ({"instance_groups": ["a=1:ml.g5.xlarge"], "instances": 2}, "and --instances 2.*leave --instance-type and"),
        ({"distribution": "torch_distributed", "processes_per_host": 4}, "--processes-per-host has no effect with"),
        ({"distribution": "smdistributed", "processes_per_host": 4}, "--processes-per-host has no effect with"),
        ({"distribution": "torch_distributed", "mpi_options": "-x A"}, "--mpi-options has no effect with"),
        ({"instance_groups": ["a:ml.g5.xlarge"]}, "NAME=COUNT:TYPE"),
        ({"channels": {"training": "none"}}, "The channel none has no files on this machine"),
        ({"channels": {"training": 2024}}, "The channel 2024 has no files"),
        ({"channels": {"training": None}}, "The channel 'training' is None"),
        ({"channels": {"training": "gs://b/x"}}, "or a local folder"),
        ({"channels": {"training": {"uri": "s3://b/x", "moed": "File"}}}, "uri, mode, sharded"),
        ({"max_run": "soon"}, r"--max-run: 'soon' is not a duration"),
        ({"distribution": "horovod"}, "torch_distributed"),
        ({"distribution": "smp"}, "needs the hyperparameter mp_parameters"),
        ({"instances": "two"}, "instances"),
        ({"spot": "maybe"}, "not boolean: maybe"),
        ({"environment": ["A=1"]}, "environment"),
        ({"instnaces": 2}, "HINT: Did you mean --instances"),
        ({"tuning": {"strategy": "Guess"}}, "Bayesian"),
        ({"tuning": {"rangse": {"a": [1, 2]}}}, "Did you mean --ranges?"),
        ({"tuning": {}, "hyperparameters": {"model__lr": 1}}, r"--range model\.lr and a hyperparameter set one key"),
        ({"tuning": {}, "from_checkpoint": "s3://b/job-1/checkpoints"}, "is for one training job"),
        ({"tuning": {"ranges": {"sagemaker_program": [1, 2]}}}, "the name 'sagemaker_program'"),
        ({"tuning": {"ranges": {"n": {"min": 1, "max": 5}}}}, "from 1 to 5 has the type None"),
        ({"tuning": {"ranges": {"n": {"min": "one", "max": 5}}}}, "Give a list of values, or"),
        ({"tuning": {"ranges": {"n": {"min": 0.1, "max": 1, "scale": "Log"}}}}, "auto, linear, log, reverse_log"),
        ({"tuning": {"ranges": {"n": 5}}}, "Give a list of values, or"),
        ({"tuning": {"ranges": {"n": {"min": 1.5, "max": 3, "type": "integer"}}}}, "type: integer with integer ends"),
        ({"tuning": {"ranges": {"n": {"min": 2.0, "max": 1}}}}, "max is not below min"),
        ({"tuning": {"ranges": {"n": {"min": 0, "max": 0.1, "scale": "log"}}}}, "cannot have the scale log"),
        ({"tuning": {"ranges": {"n": {"min": 0.5, "max": 1, "scale": "reverse_log"}}}}, "the scale reverse_log"),
        ({"tuning": {"ranges": {"n": {"min": 0.5, "max": float("nan")}}}}, "from 0.5 to nan .*finite"),
        ({"tuning": {"strategy": "Grid", "ranges": {"n": {"min": 0.5, "max": 1}}}}, "--strategy Grid takes lists"),
    ],
)
def test_settings_that_mean_nothing(given, message):
    with pytest.raises(LightningSMError, match=message):
        request_of(**given)


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metrics": [f"m{k}" for k in range(41)]}, "MetricDefinitions has 41 entries"),
        ({"role": "arn:aws:iam::ACCOUNT:role/ROLE"}, "RoleArn is .*, which is not of the form"),
        ({"name": "under_score"}, r"TrainingJobName is 'under_score', which is not of the form"),
        ({"name": "a" * 64}, "TrainingJobName has 64 characters, more than 63"),
        ({"hyperparameters": {f"a{k}": k for k in range(100)}}, "HyperParameters has 10[4-9] entries, more than 100"),
        ({"hyperparameters": {"a": "x" * 2500}}, r"HyperParameters\['a'\] has 2502 characters, more than 2500"),
        ({"environment": {"1A": "x"}}, "not of the form"),
        ({"instance_type": "ml.unknown.xlarge"}, r"ml\.unknown\.xlarge', which is none that the API"),
        ({"max_run": "30d"}, "MaxRuntimeInSeconds has 2592000, more than 2419200"),
        ({"instances": 0}, "InstanceCount has 0, less than 1"),
        ({"spot": True, "set": {"StoppingCondition.MaxRuntimeInSeconds": 200_000}}, "MaxWaitTimeInSeconds is less"),
        ({"set": {"ResourceConfig.VolumeSizeInGB": "big"}}, "type: <class 'str'>, valid types: <class 'int'>"),
        ({"set": {"ResourceConfg.VolumeSizeInGB": 1}}, 'Unknown parameter in input: "ResourceConfg"'),
        ({"tuning": {"max_jobs": 2}, "name": "a" * 33}, "HyperParameterTuningJobName has 33 characters, more than 32"),
        ({"tuning": {"max_jobs": 2, "ranges": {"a": list(range(31))}}}, "Values has 31 entries, more than 30"),
        ({"tuning": {"max_jobs": 2, "max_parallel_jobs": 101}}, "MaxParallelTrainingJobs has 101, more than 100"),
        ({"tuning": {"max_jobs": 0}}, "MaxNumberOfTrainingJobs"),
        ({"tuning": {"max_jobs": 2, "ranges": {"a": []}}}, "Invalid length for parameter .*Values, value: 0"),
        ({"tuning": {"max_jobs": 2}, "instance_groups": ["a=1:ml.g5.xlarge"]}, 'Unknown parameter .* "InstanceGroups"'),
    ],
)
def test_limits_of_the_api(given, message):
    pytest.importorskip("botocore", reason="the extra launch is not installed")
    with pytest.raises(LaunchError, match=message):
        check_limits(request_of(**given))
    # That of a search is another limit, of the same name.
    check_limits(request_of(tuning={"max_jobs": 2}, set={f"{_LIMITS}.MaxRuntimeInSeconds": 60 * 86_400}))


def test_channels_whose_files_would_be_missing_are_refused(tmp_path, monkeypatch):
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "a.bin").write_bytes(b"a")
    link, channel = tmp_path / "data" / "link", {"channels": {"training": str(tmp_path / "data")}}
    link.symlink_to(tmp_path / "data" / "inner" / "a.bin")
    assert request_of(**channel).as_body()["InputDataConfig"]
    for target in (tmp_path / "data" / "inner", tmp_path / "none"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(LaunchError, match=r"data/link in the channel .* is a link to a folder, or to nothing"):
            request_of(**channel)
    link.unlink()
    (tmp_path / "data" / os.fsdecode(b"\xff")).write_bytes(b"a")
    with pytest.raises(LaunchError, match="its name UTF-8"):
        request_of(**channel)
    (tmp_path / "data" / os.fsdecode(b"\xff")).unlink()
    # To root each folder is open.
    monkeypatch.setattr(os, "access", lambda folder, mode: "inner" not in str(folder))
    with pytest.raises(LaunchError, match=r"data/inner in the channel .* cannot be read"):
        request_of(**channel)


def test_images_of_china():
    assert find_image("pytorch-2.8-cpu", "cn-north-1").uri == (
        "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.8.0-cpu-py312"
    )
    with pytest.raises(LaunchError, match="region 'moon-1'"):
        find_image("pytorch-2.8-cpu", "moon-1")
