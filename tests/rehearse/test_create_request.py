"""From options, files and bodies to a request; what cannot be rehearsed is refused there."""

import json
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, List

import pytest

from lightning_sm import launch, rehearse
from lightning_sm.errors import LightningSMError
from lightning_sm.rehearse import (
    Isolation,
    Limits,
    NetworkLink,
    RehearsalError,
    RehearsalRequest,
    create_request,
    main,
    request_from_body,
)
from lightning_sm.rehearse._command import request_from_arguments
from lightning_sm.rehearse._sdk import distribution_of
from tests.helpers.rehearsal import cli_request as request


class TestHyperparameters:
    @pytest.mark.parametrize("words", [["fit", "--config", "c.yaml", "--+trainer.x", "20"], ["--lr=0.1", "--a", "[1]"]])
    def test_the_words_mean_what_they_mean_to_launch(self, source: Path, words: List[str]) -> None:
        settings = {"image": "a/b", "role": "r", "instance_type": "ml.m5.xlarge", "entry_point": "plain.py"}
        account = launch.Account("us-east-1", "rehearsal")
        sent = launch.create_job_request(
            launch.settings_of(settings), account, name="rehearsal", hyperparameters=launch.hyperparameters_of(words)
        )
        assert dict(request(source, "plain.py", *words).hyperparameters) == sent.as_body()["HyperParameters"]

    def test_v3_leaves_text(self, source: Path) -> None:
        values = {"text": "a", "number": 1, "none": None, "map": {"a": True}}
        made = create_request("plain.py", source_dir=source, sdk="v3", hyperparameters=values)
        assert dict(made.hyperparameters) == {"text": "a", "number": "1", "none": "null", "map": '{"a": true}'}


class TestDistributions:
    @pytest.mark.parametrize("distribution", ["none", "torch_distributed", "smdistributed", "mpi"])
    def test_the_toolkit_reads_what_the_sdk_sends(self, source: Path, distribution: str) -> None:
        made = request(source, "--distribution", distribution, "plain.py")
        assert distribution_of(dict(made.hyperparameters)) == made.distribution == distribution

    def test_current_sdks_send_smdistributed_for_pytorchddp(self, source: Path) -> None:
        made = request(source, "--distribution", "pytorchddp", "plain.py")
        assert distribution_of(dict(made.hyperparameters)) == "smdistributed"
        assert made.distribution == "pytorchddp"

    def test_flags_of_other_sdks(self) -> None:
        assert distribution_of({"sagemaker_pytorch_ddp_enabled": "true"}) == "pytorchddp"
        assert distribution_of({"sagemaker_distributed_dataparallel_enabled": '"true"'}) == "smdistributed"
        assert distribution_of({"sagemaker_mpi_enabled": "false"}) == "none"


class TestOptions:
    def test_everything_lands_in_the_request(self, source: Path) -> None:
        made = request(
            source, "--hosts", 11, "--processes", 2, "--distribution", "mpi", "--mpi-options", "-x A", "--env", "A=b=c",
            "--channel", f"training={source}", "--timeout", "2m", "plain.py", "--trainer.max_epochs", 2,
        )  # fmt: skip
        assert made.hosts[:3] == ("algo-1", "algo-10", "algo-11")
        assert made.groups[0].hosts[:3] == ("algo-1", "algo-2", "algo-3")
        assert dict(made.hyperparameters) == {
            "trainer.max_epochs": "2",
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_custom_mpi_options": '"-x A"',
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_program": '"plain.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"rehearsal"',
            "sagemaker_region": '"us-east-1"',
            "sagemaker_submit_directory": '"s3://rehearsal/rehearsal/source/sourcedir.tar.gz"',
        }
        assert made.environment == (("LIGHTNING_SM_AUTO", "1"), ("A", "b=c"))
        assert made.channels[0].path == source
        assert made.limits.timeout == 120.0

    def test_options_win_over_the_file(self, source: Path, tmp_path: Path) -> None:
        given = tmp_path / "given.json"
        given.write_text('{"a": {"b": 1}, "c": null}')
        made = request(source, "--hyperparameters", given, "plain.py", "--c", "2")
        assert (made.hyperparameter("a"), made.hyperparameter("c")) == ('{"b": 1}', "2")

    def test_groups(self, source: Path) -> None:
        made = request(
            source, "--instance-groups", "head=1:ml.c5.large,workers=algo-3+algo-2", "--distribution-groups", "workers",
            "--distribution", "mpi", "plain.py",
        )  # fmt: skip
        assert [(group.name, group.instance_type, group.hosts) for group in made.groups] == [
            ("head", "ml.c5.large", ("algo-1",)),
            ("workers", "ml.m5.xlarge", ("algo-3", "algo-2")),
        ]
        assert made.hyperparameter("sagemaker_distribution_instance_groups") == '["workers"]'
        assert made.distribution_hosts == ("algo-3", "algo-2")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "No entry point"),
            (["nope.py"], "'nope.py' is not a file"),
            (["--hosts", "0", "plain.py"], "--hosts 0 must be"),
            (["--processes", "0", "--distribution", "mpi", "plain.py"], "--processes 0 must be"),
            (["--processes", "2", "plain.py"], "no meaning with --distribution none"),
            (["--sdk", "v3", "--distribution", "smdistributed", "plain.py"], "SDK v3 has no launcher"),
            (["--channel", "training", "plain.py"], "is not NAME=PATH"),
            (["--channel", "training=/nowhere/at/all", "plain.py"], "does not exist"),
            (["--channel", "a=/", "--channel", "a=/", "plain.py"], "given twice"),
            (["--env", "A", "plain.py"], "is not NAME=VALUE"),
            (["--timeout", "soon", "plain.py"], "--timeout: 'soon' is not a duration"),
            (["--bandwidth", "5", "plain.py"], "is not a bandwidth"),
            (["--instance-groups", "a", "plain.py"], "is not NAME=N"),
            (["--instance-groups", "a=0", "plain.py"], "is not NAME=N"),
            (["--instance-groups", "a=1,a=1", "plain.py"], "twice"),
            (["--instance-groups", "a=1", "--hosts", "2", "plain.py"], "exclude each other"),
            (["--instance-groups", "a=1", "--distribution-groups", "b", "plain.py"], "not one of --instance-groups"),
            (["--distribution-groups", "b", "plain.py"], "needs --instance-groups"),
            (["--hyperparameters", "/nowhere.json", "plain.py"], "cannot be read as JSON"),
        ],
    )
    def test_bad_arguments_say_what_is_wrong(self, source: Path, arguments: List[str], words: str) -> None:
        with pytest.raises(RehearsalError, match=words):
            request(source, *arguments)

    def test_main_ends_with_2_and_one_line(self, source: Path, capsys: pytest.CaptureFixture) -> None:
        assert main(["--source-dir", str(source), "nope.py"]) == 2
        assert capsys.readouterr().err.startswith("lightning-sm rehearse: The entry point 'nope.py' is not a file")

    def test_the_error_is_the_packages_own(self) -> None:
        assert issubclass(RehearsalError, LightningSMError)


class TestPython:
    def test_arguments_are_the_options_of_the_command(self, source: Path, tmp_path: Path) -> None:
        made = create_request(
            "plain.py",
            source_dir=source,
            processes=2,
            distribution="mpi",
            instance_groups="head=1:ml.c5.large,workers=2",
            distribution_groups=["workers"],
            mpi_options="-x A",
            hyperparameters={"lr": 0.1, "map": {"a": None}},
            channels={"training": source},
            environment={"A": "b"},
            command=["train"],
            job_name="job",
            checkpoint_dir=tmp_path,
            install_requirements=False,
            limits=Limits(timeout=60, stop_at="step 5"),
            link=NetworkLink(bits_per_second=10**9, latency=0.001),
            isolation="netns",
            keep=True,
        )
        (tmp_path / "command.json").write_text('{"ContainerEntrypoint": ["train"]}')
        assert made == request(
            source, "--processes", 2, "--distribution", "mpi", "--instance-groups", "head=1:ml.c5.large,workers=2",
            "--distribution-groups", "workers", "--mpi-options", "-x A", "--channel", f"training={source}",
            "--env", "A=b", "--entrypoint", tmp_path / "command.json", "--job-name", "job", "--no-requirements",
            "--checkpoint-dir", tmp_path, "--timeout", "1m", "--stop-at", "step 5", "--bandwidth", "1gbit",
            "--latency", "1ms", "--isolation", "netns", "--keep", "plain.py", "--lr", "0.1", "--map", '{"a": null}',
        )  # fmt: skip
        assert made.isolation is Isolation.NETNS
        assert "job_name='job'" in repr(made)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"distribution": "ddp"}, "distribution 'ddp' is not known.*HINT.*torch_distributed"),
            ({"isolation": "docker"}, "isolation 'docker' is not known.*HINT.*netns, userns, loopback"),
            ({"sdk": "v4"}, "sdk 'v4' is not known"),
            ({"channels": {"a/b": "/"}}, "'a/b' is not a channel name"),
            ({"limits": Limits(stop_after=1, interrupt_after=1)}, "exclude each other"),
        ],
    )
    def test_what_is_not_known_names_the_choices(self, source: Path, arguments: Dict[str, Any], words: str) -> None:
        with pytest.raises(RehearsalError, match=words):
            create_request("plain.py", source_dir=source, **arguments)

    def test_a_body_without_hosts(self) -> None:
        with pytest.raises(RehearsalError, match="not the body of a CreateTrainingJob request"):
            request_from_body({})

    def test_dir_shows_what_is_public(self) -> None:
        assert dir(rehearse) == sorted(rehearse.__all__)
        assert {"rehearse", "create_request", "RehearsalRequest", "Outcome"} <= set(dir(rehearse))
        assert all(getattr(rehearse, name).__doc__ for name in rehearse.__all__)


class TestBody:
    BODY: ClassVar[Dict[str, Any]] = {
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
        "InputDataConfig": [
            {"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/data"}}},
        ],
    }  # fmt: skip

    @pytest.fixture
    def read(self, tmp_path: Path) -> Callable[..., RehearsalRequest]:
        def read(*arguments: object, **changes: Any) -> RehearsalRequest:
            file = tmp_path / "body.json"
            file.write_text(json.dumps({**self.BODY, **changes}))
            return request_from_arguments(["--request", str(file), *map(str, arguments)])

        return read

    def test_everything_lands_in_the_request(self, read: Callable[..., RehearsalRequest]) -> None:
        made = read()
        assert (made.job_name, made.sdk, made.distribution, made.hosts) == (
            "job-1", "v2", "torch_distributed", ("algo-1", "algo-2")
        )  # fmt: skip
        assert made.channels[0].source == "s3://bucket/data"
        assert (made.archive_uri, made.output_uri) == ("s3://bucket/sourcedir.tar.gz", "s3://bucket/out")
        assert (made.entry_point, made.command, made.has_checkpoints) == ("train.py", ("train",), True)

    def test_options_replace_s3(self, read: Callable[..., RehearsalRequest], source: Path) -> None:
        made = read("--channel", f"training={source}", "--source-dir", source, "--processes", 2)
        assert made.channels[0].source == str(source)
        assert (made.archive_uri, made.code) == (None, source)
        assert made.hyperparameter("sagemaker_mpi_num_of_processes_per_host") == "2"

    def test_v3_is_known_by_its_drivers(self, read: Callable[..., RehearsalRequest], source: Path) -> None:
        channel = {"ChannelName": "sm_drivers", "DataSource": {"S3DataSource": {"S3Uri": f"file://{source}"}}}
        algorithm = {"ContainerEntrypoint": ["/bin/bash"], "ContainerArguments": ["-c", "run"]}
        made = read(InputDataConfig=[channel], AlgorithmSpecification=algorithm)
        assert (made.sdk, made.command) == ("v3", ("/bin/bash", "-c", "run"))

    def test_instance_groups(self, read: Callable[..., RehearsalRequest]) -> None:
        groups = [
            {"InstanceGroupName": "a", "InstanceType": "ml.m5.large", "InstanceCount": 1},
            {"InstanceGroupName": "b", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
        ]
        made = read(ResourceConfig={"InstanceGroups": groups})
        assert [group.hosts for group in made.groups] == [("algo-1",), ("algo-2", "algo-3")]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"HyperParameters": {"a": 1}}, "is not a string"),
            ({"ResourceConfig": {"InstanceCount": 1}}, "no InstanceType"),
            ({"InputDataConfig": [{"ChannelName": "a", "InputMode": "Pipe"}]}, "only S3Prefix"),
            ({"InputDataConfig": [{"ChannelName": "a"}]}, "neither an s3://"),
        ],
    )
    def test_what_cannot_be_rehearsed_is_refused(
        self, read: Callable[..., RehearsalRequest], changes: Dict[str, Any], words: str
    ) -> None:
        with pytest.raises(RehearsalError, match=words):
            read(**changes)

    def test_the_body_says_how_many_hosts(self, read: Callable[..., RehearsalRequest]) -> None:
        with pytest.raises(RehearsalError, match="--request and --hosts exclude each other"):
            read("--hosts", 2)
