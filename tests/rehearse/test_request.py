"""From options, folders and bodies to a request; what cannot be rehearsed is refused there."""

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from lightning_sm._options import _advice
from lightning_sm.errors import LightningSMError
from lightning_sm.rehearse import (
    RehearsalError,
    RehearsalOptions,
    create_request,
    request_from_body,
)
from lightning_sm.rehearse._command import _parser
from lightning_sm.rehearse._comparison import differences
from tests.helpers.rehearsal import cli_request, needs

BODY: Dict[str, Any] = {
    "TrainingJobName": "job-1",
    "AlgorithmSpecification": {"TrainingInputMode": "File"},
    "HyperParameters": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"',
        "sagemaker_torch_distributed_enabled": "true",
    },
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge", "VolumeSizeInGB": 30},
    "Environment": {"A": "b"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints"},
    "InputDataConfig": [{"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/data"}}}],
}


@pytest.mark.full
@needs(v3=True)
def test_v3_sends_text_as_it_is(source: Path) -> None:
    values = {"text": "a", "number": 1, "none": None, "map": {"a": True}}
    options = RehearsalOptions(source_dir=str(source))
    made = create_request("plain.py", options, sdk="v3", distribution="mpi", hyperparameters=values)
    assert (made.sdk, made.distribution, made.hyperparameters) == (
        "v3", "mpi", {"text": "a", "number": "1", "none": "null", "map": '{"a": true}'}
    )  # fmt: skip
    assert next(each.source for each in made.channels if each.name == "code") == str(source)
    with pytest.raises(RehearsalError, match="SDK v3 has no launcher for smdistributed"):
        create_request("plain.py", options, sdk="v3", distribution="smdistributed")


@pytest.mark.parametrize(
    ("sent", "distribution"),
    [
        ({"sagemaker_pytorch_ddp_enabled": "true"}, "pytorchddp"),
        ({"sagemaker_distributed_dataparallel_enabled": '"true"'}, "smdistributed"),
        ({"sagemaker_mpi_enabled": "false"}, "none"),
    ],
)
def test_flags_of_other_sdks(sent: Dict[str, str], distribution: str) -> None:
    assert request_from_body({**BODY, "HyperParameters": sent}).distribution == distribution


def test_options_are_arguments_of_python(source: Path, tmp_path: Path) -> None:
    options = RehearsalOptions(
        source_dir=str(source), processes=2, channels={"training": str(source)}, environment={"A": "b=c"},
        allow_files=("a", "b"), requirements=False, checkpoint_dir=str(tmp_path), isolation="netns",
        host_names=("algo-1", "algo-3", "algo-2"), bandwidth=10**9, latency=0.001, stop_at="step 5", timeout=60,
    )  # fmt: skip
    groups = ("head=1:ml.c5.large", "workers=2:ml.m5.xlarge")
    made = create_request(
        "plain.py", options, distribution="mpi", instance_groups=groups, distribution_groups=["workers"],
        mpi_options="-x A", forward_sigterm=False, job_name="job", hyperparameters={"lr": 0.1, "map": {"a": 1}},
    )  # fmt: skip
    assert made == cli_request(
        source, "--processes", 2, "--distribution", "mpi", "--instance-groups", ",".join(groups),
        "--distribution-groups", "workers", "--mpi-options", "-x A", "--channel", f"training={source}",
        "--env", "A=b=c", "--allow-file", "a", "--allow-file", "b", "--no-forward-sigterm",
        "--job-name", "job", "--no-requirements",
        "--checkpoint-dir", tmp_path, "--host-names", "algo-1,algo-3,algo-2", "--timeout", "1m", "--stop-at", "step 5",
        "--bandwidth", "1gbit", "--latency", "1ms", "--isolation", "netns", "plain.py", "--lr", "0.1", "--map={a: 1}",
    )  # fmt: skip
    assert [(group.name, group.instance_type, group.hosts) for group in made.groups] == [
        ("head", "ml.c5.large", ("algo-1",)),
        ("workers", "ml.m5.xlarge", ("algo-3", "algo-2")),
    ]
    assert (made.hosts, made.distribution_hosts) == (("algo-1", "algo-2", "algo-3"), ("algo-3", "algo-2"))
    assert made.hyperparameters["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert made.environment == {"LIGHTNING_SM_AUTO": "1", "A": "b=c"}
    assert (made.channels[0].path, made.command, made.job_name) == (source, ("train",), "job")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "'train.py' is not a file"),
        (["nope.py"], "'nope.py' is not a file"),
        ([os.__file__], "os.py' is not a file in .*HINT: Its path is relative to --source-dir"),
        (["x/../plain.py"], "is not a file"),
        (["plain.py", "--hosts", "2"], "--hosts behind 'plain.py' would be an argument of the program"),
        (["--hosts", "0", "plain.py"], "no InstanceCount"),
        (["--processes", "0", "--distribution", "mpi", "plain.py"], "--processes 0 must be"),
        (["--processes", "2", "plain.py"], "no meaning with --distribution none"),
        (["--launcher", "hyperpodrun", "plain.py"], "which --distribution none does not start"),
        (["--channel", "training=/nowhere/at/all", "plain.py"], "neither an s3:// prefix nor an existing folder"),
        (["--instance-groups", "a=1", "plain.py"], "NAME=COUNT:TYPE"),
        (["--instance-groups", "a=1:ml.m5.large", "--hosts", "2", "plain.py"], "exclude each other"),
        (["--host-names", "algo-1", "--hosts", "2", "plain.py"], "not names of 2 hosts"),
        (["--host-names", "a,b,c", "--hosts", "2", "plain.py"], "a,b,c are not names of 2 hosts"),
        (["--upload", "plain.py"], "--upload is for --request"),
        (["--upload", "--output-dir", "out", "plain.py"], "--upload and --output-dir exclude each other"),
        (["--request", "/nowhere.json"], "holds no CreateTrainingJob request"),
        (["--request", "/nowhere.json", "--hosts", "1"], "--request and --hosts exclude each other"),
        (["--request", "/nowhere.json", "plain.py"], r"--request and plain\.py exclude each other"),
        (["--distribution", "ddp", "plain.py"], "torch_distributed"),
        (["--channel", "training", "plain.py"], "is no NAME=VALUE"),
        (["--timeout", "soon", "plain.py"], "--timeout: 'soon' is not a duration"),
        (["--bandwidth", "5", "plain.py"], "is not a bandwidth"),
        (["--isolation", "docker", "plain.py"], "'netns', 'userns', 'loopback'"),
        (["--hosst", "2", "plain.py"], "Did you mean --hosts?"),
    ],
)
def test_bad_arguments_say_what_is_wrong(source: Path, arguments: List[str], told: str) -> None:
    with pytest.raises(LightningSMError, match=told):
        cli_request(source, *arguments)


def test_no_option_is_a_tuple() -> None:
    """jsonargparse 4.21, which Lightning 1.5 needs, refuses an empty one: the command could not be used at all."""
    parser = _parser()
    assert [each.dest for each in parser._actions if "Tuple" in str(getattr(each, "_typehint", ""))] == []
    for text in ('No action for destination key "hosst" to check its value.', "Unrecognized arguments: --hosst"):
        assert _advice(parser, text) == "Did you mean --hosts?"


def test_a_channel_without_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    words = ("--channel", f"training={tmp_path / 'data'}", "plain.py")
    with pytest.raises(LightningSMError, match="data has no files, and SageMaker refuses"):
        cli_request(source, *words)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.csv").touch()
    (tmp_path / "data" / "inner" / "link").symlink_to(tmp_path / "elsewhere")
    assert cli_request(source, *words).channels[0].path == (tmp_path / "data").resolve()


def test_a_body_and_the_local_folders_in_its_place(source: Path, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    made = cli_request(source, "--request", tmp_path / "body.json")
    assert (made.job_name, made.sdk, made.distribution, made.hosts) == (
        "job-1", "v2", "torch_distributed", ("algo-1", "algo-2")
    )  # fmt: skip
    assert made.channels[0].source == "s3://bucket/data"
    assert (made.archive_uri, made.output_uri, made.checkpoint_uri) == (
        None,
        "s3://bucket/out",
        "s3://bucket/checkpoints",
    )
    assert (made.command, made.has_checkpoints) == (("train",), True)
    assert request_from_body(BODY).archive_uri == "s3://bucket/sourcedir.tar.gz"
    options = RehearsalOptions(channels={"training": str(source), "more": str(source)}, checkpoint_dir=str(tmp_path))
    local = request_from_body(BODY, options)
    assert [(each.name, each.source) for each in local.channels] == [("training", str(source)), ("more", str(source))]
    assert (local.checkpoint_uri, local.has_checkpoints) == (None, True)


def test_a_choice_of_instances_and_a_job_without_a_network(source: Path) -> None:
    preferences = [{"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2}, {"InstanceType": "ml.g5.xlarge"}]
    archive = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/job-1/source/sourcedir.tar.gz"}}
    inputs = [{"ChannelName": "code", "DataSource": archive}, {"ChannelName": "training", "InputMode": "Pipe"}]
    body = {**BODY, "ResourceConfig": {"InstancePreferences": preferences}, "InputDataConfig": inputs}
    options = RehearsalOptions(source_dir=str(source), channels={"training": str(source)})
    made = request_from_body(body, options)
    assert [(each.instance_type, each.hosts) for each in made.groups] == [("ml.p5.48xlarge", ("algo-1", "algo-2"))]
    assert made.channels[0].source == str(source)
    assert any("plain folders here (training: Pipe)" in each for each in differences(made, "userns"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "not the body of a CreateTrainingJob request"),
        ({**BODY, "HyperParameters": {"a": 1}}, "is not a string"),
        ({**BODY, "InputDataConfig": [{}]}, "not the body of a .* request .KeyError: 'ChannelName'"),
        ({**BODY, "CheckpointConfig": {"LocalPath": None}}, "not the body of a .* request .AttributeError"),
        ({**BODY, "ResourceConfig": {"InstanceCount": 1}}, "no InstanceType"),
        ({**BODY, "InputDataConfig": [{"ChannelName": "a", "InputMode": "Pipe"}]}, "only S3Prefix"),
        ({**BODY, "InputDataConfig": [{"ChannelName": "a"}]}, "neither an s3://"),
        ({**BODY, "CheckpointConfig": {"LocalPath": "/data"}}, "'/data' cannot be rehearsed"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(body: Dict[str, Any], told: str) -> None:
    with pytest.raises(RehearsalError, match=told):
        request_from_body(body)
