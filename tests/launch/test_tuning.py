"""Requests of tuning jobs equal those of SageMaker's SDK v2; ranges, and training jobs drawn from them."""

import json
import math
import random
import re

import pytest

from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm.launch import LaunchError, create_tuning_request, settings_of, tuning_settings_of
from lightning_sm.launch._ranges import as_range
from lightning_sm.launch._tuning import default_tuning_name
from tests.launch.test_request import ACCOUNT, RECORDED, ROLE, TUNING_JOBS

LR = {"model.lr": {"min": "1e-5", "max": 0.1, "scale": "log"}}


def tuning_of(name="tune-1", tuning=None, metrics=None, hyperparameters=None, **given):
    given = {
        "role": ROLE,
        "image": "pytorch-2.8-gpu",
        "channels": {"training": "s3://data/train"},
        "auto": False,
        **given,
    }
    if "instance_groups" not in given:
        given.setdefault("instance_type", "ml.g5.xlarge")
    searched = {"objective": "val_acc", "direction": "maximize", "max_jobs": 20, "ranges": LR, **(tuning or {})}
    settings = tuning_settings_of(searched)
    metrics = [{"Name": settings.objective, "Regex": "x=(.*)"}] if metrics is None else metrics
    return create_tuning_request(
        settings_of(given), settings, ACCOUNT, name=name, hyperparameters=hyperparameters, metric_definitions=metrics
    )


@pytest.mark.parametrize("name", sorted(TUNING_JOBS))
def test_equal_to_what_the_sdk_sends(name):
    job = TUNING_JOBS[name]
    request = tuning_of(
        job["name"], {"max_jobs": None, **job["tuning"]}, job["tuner"]["metric_definitions"], **job["launch"]
    )
    recorded = json.loads(json.dumps(RECORDED[name]))
    # The SDK reads them again when it attaches to the job.
    for own in ("sagemaker_estimator_class_name", "sagemaker_estimator_module"):
        del recorded["TrainingJobDefinition"]["StaticHyperParameters"][own]
    assert request.as_body() == recorded


def test_values_of_lists_keep_their_types_which_sdk_v2_makes_text():
    ranges = tuning_of(tuning={"ranges": {"a": [16, "1e-3", True, None, "16"]}}).as_body()
    (found,) = ranges["HyperParameterTuningJobConfig"]["ParameterRanges"]["CategoricalParameterRanges"]
    assert found["Values"] == ["16", "0.001", "true", "null", '"16"']


def test_several_instance_types():
    request = tuning_of(instance_type=["ml.g5.xlarge:1", "ml.g4dn.xlarge:2"], volume_kms_key="key-1")
    assert request.as_body()["TrainingJobDefinition"]["HyperParameterTuningResourceConfig"] == {
        "VolumeKmsKeyId": "key-1",
        "InstanceConfigs": [
            {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
            {"InstanceType": "ml.g4dn.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        ],
    }
    drawn = request.draw(1).as_body()["ResourceConfig"]
    assert (drawn["InstanceType"], drawn["InstanceCount"]) == ("ml.g5.xlarge", 1)
    assert "InstancePreferences" not in drawn


def test_checkpoints_of_all_training_jobs_have_no_common_prefix_unless_it_is_named():
    assert "CheckpointConfig" not in tuning_of().as_body()["TrainingJobDefinition"]
    named = tuning_of(checkpoints="s3://mine/shared").as_body()["TrainingJobDefinition"]
    assert named["CheckpointConfig"] == {"S3Uri": "s3://mine/shared"}


def test_a_drawn_job_is_what_the_service_makes_of_the_tuning_job():
    ranges = {**LR, "batch": {"min": 16, "max": 18, "type": "integer"}, "optimizer": ["adam", "sgd"]}
    request = tuning_of(tuning={"ranges": ranges}, hyperparameters={"trainer.max_epochs": 3, "version": "5"})
    drawn = request.draw(7)
    body = drawn.as_body()
    assert body == request.draw(7).as_body() != request.draw(8).as_body()
    assert re.fullmatch(r"tune-1-001-[0-9a-f]{8}", body["TrainingJobName"])
    assert drawn.name == body["TrainingJobName"]
    values = body["HyperParameters"]
    assert all(isinstance(value, str) for value in values.values())
    assert values["_tuning_objective_metric"] == "val_acc"
    static = request.as_body()["TrainingJobDefinition"]["StaticHyperParameters"]
    assert {key: values[key] for key in static} == static
    assert set(values) - set(static) == {*ranges, "_tuning_objective_metric"}
    assert 1e-5 <= float(values["model.lr"]) <= 0.1
    assert values["batch"] in ("16", "17", "18")
    assert values["optimizer"] in ('"adam"', '"sgd"')
    assert set(body["AlgorithmSpecification"]) == {"TrainingImage", "TrainingInputMode", "MetricDefinitions"}
    read = Hyperparameters.from_file(values, "hyperparameters.json")
    assert read.values["model.lr"] == float(values["model.lr"])
    assert read.values["optimizer"] in ("adam", "sgd")
    assert (read.values["trainer.max_epochs"], read.values["version"], read.objective) == (3, "5", "val_acc")


@pytest.mark.parametrize(
    ("given", "middle"),
    [
        ({"min": 1e-6, "max": 1.0, "scale": "log"}, 1e-3),
        ({"min": 0.0, "max": 1.0, "scale": "linear"}, 0.5),
        ({"min": 0.0, "max": 0.9999, "scale": "reverse_log"}, 0.99),
        ({"min": 1, "max": 10_000, "type": "integer", "scale": "log"}, 100),
        ({"min": 10, "max": 20, "type": "integer"}, 15),
    ],
)
def test_draws_stay_in_the_range_and_follow_its_scale(given, middle):
    found, numbers = as_range("a", given), random.Random(0)
    drawn = [float(found.draw(numbers)) for _ in range(2000)]
    assert given["min"] <= min(drawn)
    assert max(drawn) <= given["max"]
    assert 0.44 < sum(value < middle for value in drawn) / len(drawn) < 0.56
    assert all(math.isfinite(json.loads(found.draw(numbers))) for _ in range(100))


def test_the_ends_of_a_range_of_integers_are_drawn():
    numbers = random.Random(0)
    assert {as_range("a", {"min": 0, "max": 2, "type": "integer"}).draw(numbers) for _ in range(100)} == set("012")


def test_the_global_generator_is_left_alone():
    random.seed(1)
    state = random.getstate()
    tuning_of().draw(3)
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"objective": None}, "no --objective"),
        ({"direction": None}, "no --direction for the objective 'val_acc'"),
        ({"direction": "up"}, r"--direction is 'up'.*maximize, minimize"),
        ({"strategy": "Guess"}, "Bayesian, Random, Hyperband, Grid"),
        ({"early_stopping": "yes"}, "--early-stopping is 'yes'"),
        ({"max_jobs": None}, "no --max-jobs"),
        ({"max_jobs": 0}, "no --max-jobs"),
        ({"max_jobs": "many"}, "--max-jobs is 'many'"),
        ({"max_tuning_time": "soon"}, "--max-tuning-time: 'soon' is not a duration"),
        ({"ranges": {}}, "no --range"),
        ({"ranges": ["model.lr"]}, "--range is"),
        ({"rangse": {}}, "tune has no setting 'rangse'.*Did you mean 'ranges'"),
        ({"warm_start": ["a"]}, "belong together"),
        ({"warm_start_type": "transfer"}, "belong together"),
        ({"warm_start": ["a"], "warm_start_type": "same"}, "--warm-start-type is 'same'.*identical, transfer"),
        ({"min_resource": 1}, "are for Hyperband"),
        ({"strategy": "Hyperband", "min_resource": 5, "max_resource": 2}, "--min-resource is greater"),
        ({"strategy": "Hyperband", "early_stopping": "auto"}, "stops training jobs itself"),
        ({"strategy": "Grid"}, r"lists of values; model\.lr has no list"),
        ({"strategy": "Grid", "ranges": {"a": [1, 2], "b": [1, 2, 3]}}, "--max-jobs is 20, and the grid has 6"),
    ],
)
def test_searches_that_mean_nothing(tuning, message):
    with pytest.raises(LaunchError, match=message):
        tuning_of(tuning=tuning)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lr", [0.1], "fewer than two values"),
        ("lr", [0.1, "1e-1"], "fewer than two values"),
        ("lr", [], "fewer than two values"),
        ("lr", [object(), 1], "not JSON serializable"),
        ("lr", 0.1, r"--range lr is 0\.1"),
        ("lr", None, "--range lr is None"),
        ("lr", {"min": 0.1}, "Give a list of values, or"),
        ("lr", {"min": 0.1, "max": 1, "sclae": "log"}, "Give a list of values, or"),
        ("lr", {"min": 0.1, "max": 1, "scale": "Log"}, "auto, linear, log, reverse_log"),
        ("lr", {"min": 0.1, "max": 1, "type": "float"}, "type: integer, continuous"),
        ("lr", {"min": 1.0, "max": 0.1}, "min 1.0 is not below max 0.1"),
        ("lr", {"min": 0.1, "max": 0.1}, "A single value is a hyperparameter"),
        ("lr", {"min": 0.0, "max": 0.1, "scale": "log"}, "Begin above 0"),
        ("lr", {"min": -1.0, "max": 0.1, "scale": "log"}, "Begin above 0"),
        ("lr", {"min": 0.5, "max": 1, "scale": "reverse_log"}, "from 0 to below 1"),
        ("n", {"min": 1, "max": 5}, "has no type"),
        ("n", {"min": 1, "max": 5.5, "type": "integer"}, "Give integers"),
        ("n", {"min": "one", "max": 5}, "has the end 'one'"),
        ("n", {"min": True, "max": 5.0}, "has the end True"),
        ("n", {"min": 0.0, "max": math.inf}, "has the end inf"),
        ("", [1, 2], "the name ''"),
        ("a b", [1, 2], "the name 'a b'"),
        ("--lr", [1, 2], "the name '--lr'"),
        ("lr=1", [1, 2], "the name 'lr=1'"),
        ("trainer.callbacks+", [1, 2], r"the name 'trainer\.callbacks\+'"),
        ("sagemaker_program", [1, 2], "SageMaker's own"),
        ("_tuning_objective_metric", [1, 2], "SageMaker's own"),
    ],
)
def test_ranges_that_mean_nothing(name, given, message):
    with pytest.raises(LaunchError, match=message):
        as_range(name, given)


@pytest.mark.parametrize("fixed", ["model.lr", "model__lr"])
def test_a_key_is_searched_or_fixed_not_both(fixed):
    message = f"--range model.lr and the hyperparameter {fixed} = 0.1 set one key"
    with pytest.raises(LaunchError, match=re.escape(message)):
        tuning_of(hyperparameters={fixed: 0.1})


def test_an_objective_that_is_not_defined():
    with pytest.raises(LaunchError, match=r"'val_acc' is not among.*metric_definitions\(\['val_acc'\]\)"):
        tuning_of(metrics=[{"Name": "val_loss", "Regex": "x"}])


@pytest.mark.parametrize(
    "given",
    [
        {"instance_groups": ["a=1:ml.g5.xlarge"]},
        {"keep_alive": "10m"},
        {"training_plan": "arn"},
        {"tensorboard_output": "s3://b/t"},
        {"mlflow_arn": "arn"},
        {"from_checkpoint": "s3://b/job-1/checkpoints"},
    ],
)
def test_what_a_tuning_job_has_no_field_for(given):
    with pytest.raises(LaunchError, match="CreateHyperParameterTuningJob has no field"):
        tuning_of(**given)


def test_default_names_have_at_most_32_characters(tmp_path):
    from datetime import datetime

    from lightning_sm._observe.mlflow import experiment_of

    name = default_tuning_name(settings_of({"base_name": "a_very_long-name " * 5}), datetime(2026, 1, 31, 12, 30))
    assert name == "a-very-long-name-20260131123000"
    assert experiment_of(f"{name}-001-0123abcd") == "a-very-long-name"


def test_yaml_reads_off_as_false():
    assert (
        tuning_settings_of({"objective": "a", "direction": "minimize", "early_stopping": False}).early_stopping == "off"
    )
