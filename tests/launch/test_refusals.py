"""What is refused before anything is sent."""

import pytest

from lightning_sm.launch import LaunchError, check_request
from tests.launch.test_request import request_of

pytest.importorskip("botocore", reason="the extra launch is not installed")
pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "train.sh").write_text("echo")
    return tmp_path


def test_what_may_be_sent():
    check_request(request_of())
    check_request(request_of(distribution="torch_distributed", spot=True, metrics=[{"Name": "a", "Regex": "a=(.*)"}]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": ""}, "no --role"),
        ({"role": "Trainer"}, "--role is 'Trainer', which is no ARN of a role.*HINT: Give the ARN"),
        ({"role": "arn:aws:iam::ACCOUNT:role/ROLE"}, "HINT: Give the ARN of the job's execution role"),
        ({"spot": True, "checkpoints": "none"}, "--spot without a place for checkpoints"),
        (
            {"from_checkpoint": "last.ckpt"},
            r"--from-checkpoint is 'last\.ckpt'.*HINT: Give the checkpoints of another job, s3://",
        ),
        ({"from_checkpoint": "s3://b/j", "checkpoints": "none"}, "--from-checkpoint without a place"),
        ({"entry_point": "none.py"}, r"none\.py is not in --source-dir"),
        ({"entry_point": "train.sh", "distribution": "torch_distributed"}, r"torchrun takes a \.py file"),
        ({"distribution": "smdistributed", "instance_type": "ml.p4d.24xlarge"}, "has no SMDDP"),
        ({"distribution": "smdistributed", "image": "pytorch-2.5-gpu"}, r"SMDDP does not run on ml\.g5\.xlarge"),
        ({"distribution": "mpi", "image": "1.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, "python -m mpi4py"),
        ({"image": "pytorch-2.8-cpu"}, "is for CPUs"),
        (
            {"distribution": "mpi", "instance_groups": ["a=1:ml.g5.xlarge"], "distribution_groups": ["b"]},
            "names b.*There are the groups a",
        ),
        ({"instance_type": ["ml.g5.xlarge:1", "ml.g5.2xlarge:1"], "spot": True}, "--spot exclude each other"),
        ({"entry_point": "../train.py"}, "refused by SageMaker's toolkit"),
        ({"entry_point": "/train.py"}, "refused by SageMaker's toolkit"),
        ({"entry_point": "my train.py"}, "without blanks"),
        ({"processes_per_host": 4}, "--processes-per-host has no effect with --distribution none"),
        ({"mpi_options": "-x A", "distribution": "torch_distributed"}, "--mpi-options has no effect"),
        ({"mlflow_experiment": "cifar"}, "no effect without --mlflow-arn"),
        ({"network_isolation": True}, "has no Lightning, and pip finds none.*HINT: Use an image of your own"),
        (
            {
                "distribution": "mpi",
                "instance_groups": ["a=1:ml.g5.xlarge", "b=1:ml.g5.xlarge"],
                "distribution_groups": ["a", "b"],
            },
            "names 2 groups, and SageMaker takes one",
        ),
        ({"keep_alive": "10m", "spot": True}, "--keep-alive and --spot"),
        ({"name": "under_score"}, r"TrainingJobName is 'under_score', which is not of the form"),
        ({"name": "a" * 64}, "TrainingJobName has 64 characters, more than 63"),
        ({"hyperparameters": {f"a{k}": k for k in range(100)}}, "HyperParameters has 10[4-9] entries, more than 100"),
        ({"hyperparameters": {"a": "x" * 2500}}, r"HyperParameters\['a'\] has 2502 characters, more than 2500"),
        ({"hyperparameters": {"a" * 257: 1}}, "has 257 characters, more than 256"),
        ({"environment": {"A": "x" * 513}}, "more than 512"),
        ({"environment": {"1A": "x"}}, "not of the form"),
        ({"instance_type": "ml.unknown.xlarge"}, r"ml\.unknown\.xlarge', which is none that the API"),
        ({"input_mode": "Slow"}, "TrainingInputMode is 'Slow'"),
        ({"metrics": [{"Name": f"m{k}", "Regex": "x"} for k in range(41)]}, "MetricDefinitions has 41 entries"),
        ({"metrics": [{"Name": "m", "Regex": "x" * 501}]}, "Regex has 501 characters, more than 500"),
        ({"tags": {"a": "x" * 257}}, "more than 256"),
        ({"volume_size": 0}, "VolumeSizeInGB"),
        ({"max_run": "1us"}, "MaxRuntimeInSeconds has 0"),
        ({"max_run": "30d"}, "MaxRuntimeInSeconds has 2592000, more than 2419200"),
        ({"instances": 0}, "InstanceCount has 0, less than 1"),
    ],
)
def test_what_may_not(given, message):
    if given == {"volume_size": 0}:
        assert "VolumeSizeInGB" not in request_of(**given).as_body()["ResourceConfig"]
        return
    with pytest.raises(LaunchError, match=message):
        check_request(request_of(**given))


def test_a_group_beside_the_distribution_needs_no_smddp():
    groups = ["head=1:ml.m5.large", "workers=2:ml.p4d.24xlarge"]
    given = {"distribution": "smdistributed", "image": "pytorch-2.5-gpu", "instance_groups": groups}
    check_request(request_of(**given, distribution_groups=["workers"]))
    with pytest.raises(LaunchError, match=r"SMDDP does not run on ml\.m5\.large"):
        check_request(request_of(**given))


def test_without_a_network_with_wheels_or_an_image_of_ones_own(source):
    check_request(request_of(network_isolation=True, image="1.dkr.ecr.us-east-1.amazonaws.com/mine:1"))
    (source / "requirements.txt").write_text("--no-index\n--find-links=wheels\npytorch-lightning\n")
    check_request(request_of(network_isolation=True))


def test_options_of_mpirun_for_its_launchers():
    check_request(request_of(distribution="mpi", processes_per_host=4, mpi_options="-x A"))
    check_request(request_of(distribution="pytorchddp", mpi_options="-x A"))


def test_an_image_of_ones_own_with_mpi4py(source):
    (source / "requirements.txt").write_text("# mpi\nmpi4py>=3")
    check_request(request_of(distribution="mpi", image="1.dkr.ecr.us-east-1.amazonaws.com/mine:1"))


def test_a_setup_script_beside_a_program_of_torchrun(source):
    (source / "setup.py").write_text("")
    check_request(request_of())
    with pytest.raises(LaunchError, match=r"A setup\.py"):
        check_request(request_of(distribution="torch_distributed"))


def test_secrets_are_named_and_not_shown(source, capsys, monkeypatch):
    from lightning_sm.launch import main

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    words = ["--region", "us-east-1", "--bucket", "bucket", "--role", "arn:aws:iam::123456789012:role/Trainer"]
    words += ["--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.xlarge", "--dry-run", "--env", "NCCL_DEBUG=INFO"]
    assert main([*words, "--env", "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "fit", "--lr", "0.1"]) == 0
    shown = capsys.readouterr().err
    assert "WANDB_API_KEY looks like a secret" in shown
    assert "0123456789abcdef" not in shown
    assert len(shown.splitlines()) == 1
