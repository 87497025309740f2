"""Arguments for SageMaker's SDKs: the jobs that they send are those of ``lightning-sm launch``."""

import json
import os
import subprocess
import tarfile
import textwrap
from pathlib import Path

import pytest

from lightning_sm import metric_definitions
from lightning_sm.launch import (
    Account,
    LaunchError,
    estimator_inputs,
    estimator_kwargs,
    model_trainer_kwargs,
    settings_of,
)
from lightning_sm.launch._model_trainer import _for_v3
from lightning_sm.rehearse import RehearsalOptions, create_request, rehearse
from tests.helpers.rehearsal import needs
from tests.launch.test_request import JOBS, ROLE, request_of

HERE = Path(__file__).parent
ACCOUNT = Account("us-east-1", "bucket")
GIVEN = {"role": ROLE, "image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge"}


@pytest.fixture
def source(tmp_path, monkeypatch):
    pytest.importorskip("botocore", reason="the extra launch is not installed")
    folder = tmp_path / "source"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("print(1)")
    (folder / "requirements.txt").write_text("torchmetrics\n")
    (folder / "big.log").write_text("x")
    (folder / ".gitignore").write_text("*.log\n")
    return folder


@pytest.mark.services
def test_the_same_settings_from_a_path_a_mapping_and_an_object(source):
    (source / "launch.yaml").write_text(json.dumps(GIVEN))
    made = [
        estimator_kwargs(given, ["fit", "--model.lr", "0.1"], name="job-1", account=ACCOUNT)
        for given in ("launch.yaml", source / "launch.yaml", GIVEN, settings_of(GIVEN))
    ]
    assert made[0] == made[1] == made[2] == made[3]
    assert made[0] == estimator_kwargs(GIVEN, "fit --model.lr=0.1", name="job-1", account=ACCOUNT)
    assert made[0]["hyperparameters"] == {"model.lr": 0.1}
    assert made[0]["checkpoint_s3_uri"] == "s3://bucket/job-1/checkpoints"
    assert any("start_with_right_hostname.sh train" in line for line in made[0]["container_arguments"])


@pytest.mark.services
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"instance_type": ["ml.g5.xlarge:1", "ml.g5.2xlarge:1"]}, "SDK v2 cannot send several instance types"),
        ({"max_pending": "2h"}, "SDK v2 cannot send --max-pending"),
        ({"role": ""}, "no --role"),
    ],
)
def test_what_sdk_v2_cannot_send(source, given, message):
    with pytest.raises(LaunchError, match=message):
        estimator_kwargs({**GIVEN, **given}, account=ACCOUNT)


@pytest.mark.services
def test_groups_and_checkpoints_with_sdk_v2(source):
    given = {key: value for key, value in GIVEN.items() if key != "instance_type"}
    with pytest.raises(LaunchError, match="--instance-group with checkpoints"):
        estimator_kwargs({**given, "instance_groups": ["a=1:ml.g5.xlarge"], "distribution": "mpi"}, account=ACCOUNT)


@pytest.mark.services
def test_a_staged_source_is_what_launch_packs(source, tmp_path):
    kwargs = estimator_kwargs(GIVEN, account=ACCOUNT, stage=tmp_path / "stage")
    staged = Path(kwargs["source_dir"])
    names = sorted(path.name for path in staged.iterdir())
    assert [name for name in names if not name.endswith(".whl")] == [".gitignore", "requirements.txt", "train.py"]
    (wheel,) = [name for name in names if name.endswith(".whl")]
    assert (staged / "requirements.txt").read_text() == f"torchmetrics\n./{wheel}\n"
    with pytest.raises(LaunchError, match="is there already"):
        estimator_kwargs(GIVEN, account=ACCOUNT, stage=staged)
    assert not (source / "launch_values.yaml").exists()


def test_inputs_of_sdk_v2():
    assert estimator_inputs({"channels": {"training": "s3://b/x", "more": {"uri": "s3://b/y"}}}) == {
        "training": "s3://b/x",
        "more": "s3://b/y",
    }
    with pytest.raises(LaunchError, match="cannot send a local folder as a channel"):
        estimator_inputs({"channels": {"training": "./data"}})


@pytest.mark.jobs
def test_an_estimator_sends_the_request_of_launch():
    python = os.environ.get("LIGHTNING_SM_SDK_V2_PYTHON")
    if python is None:
        pytest.skip("LIGHTNING_SM_SDK_V2_PYTHON names no Python with sagemaker<3")
    command = [python, str(HERE / "record_sdk_v2.py"), "--kwargs", "--print"]
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=environ)
    sent = json.loads(done.stdout[done.stdout.index("{") :])
    assert sorted(sent) == sorted(JOBS)
    for name, job in JOBS.items():
        metrics = [each["Name"] for each in job["sdk"].get("metric_definitions", ())]
        defined = metric_definitions(metrics) if metrics else ()
        assert sent[name] == request_of(job["name"], defined, **job["launch"]).as_body(), name


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("model.lr", 0.1, {"model__lr": 0.1}),
        ("model.init_args.lr", 0.1, {"model__init_args__lr": 0.1}),
        ("lr", 0.1, {"lr": 0.1}),
        ("max-epochs", 5, {"max-epochs": 5}),
        ("config", ["a.yaml", "b.yaml"], {"config": ["a.yaml", "b.yaml"]}),
        ("text", 'say "so" \\ and $HOME `x`', {"text": 'say "so" \\ and $HOME `x`'}),
        # The container decodes texts that are JSON.
        ("text", "[1, 2]", {"text": '"[1, 2]"'}),
        ("text", "5", {"text": "5"}),
        ("text", "it's", None),
        ("words", ["it's"], None),
        ("text", '"it\\u0027s"', {"text": '"\\"it\\\\u0027s\\""'}),
        # These names would mean others, or are SageMaker's own.
        ("model.a__b", 1, None),
        ("model.a_._b", 1, None),
        ("sagemaker.save_every", "5m", None),
        ("trainer.callbacks[0]", 1, None),
        ("a b", 1, None),
    ],
)
def test_names_and_values_for_sdk_v3(name, value, sent):
    assert _for_v3({name: value}) == ((sent, {}) if sent is not None else ({}, {name: value}))


@pytest.mark.services
def test_arguments_of_a_model_trainer_are_plain_values(source):
    given = {**GIVEN, "spot": True, "max_run": "1h", "tags": {"team": "vision"}, "encrypt_traffic": True}
    given["channels"] = {"training": {"uri": "s3://b/x", "sharded": True}}
    kwargs = model_trainer_kwargs(given, "fit --config config.yaml --model.lr 0.1", account=ACCOUNT)
    assert json.loads(json.dumps(kwargs)) == kwargs
    assert kwargs["hyperparameters"] == {"model__lr": 0.1, "config": "config.yaml"}
    assert kwargs["source_code"] == {
        "source_dir": ".",
        "entry_script": "train.py",
        "requirements": "requirements.txt",
    }
    assert kwargs["compute"] == {
        "instance_type": "ml.g5.xlarge",
        "instance_count": 1,
        "volume_size_in_gb": 30,
        "enable_managed_spot_training": True,
    }
    assert kwargs["stopping_condition"] == {
        "max_runtime_in_seconds": 3600,
        "max_wait_time_in_seconds": 3600 + 86_400,
    }
    assert kwargs["networking"] == {"enable_inter_container_traffic_encryption": True}
    (channel,) = kwargs["input_data_config"]
    assert channel["data_source"]["s3_data_source"]["s3_data_distribution_type"] == "ShardedByS3Key"
    assert kwargs["checkpoint_config"]["s3_uri"].startswith("s3://bucket/source-")


@pytest.mark.services
@pytest.mark.parametrize(
    ("given", "words", "message"),
    [
        (
            {"distribution": "smdistributed", "instance_type": "ml.p4d.24xlarge", "image": "pytorch-2.5-gpu"},
            "",
            "smdistr",
        ),
        ({"distribution": "mpi", "instances": 2}, "", "--processes-per-host"),
        ({"channels": {"my-data": "s3://b/x"}}, "", "channel 'my-data'"),
        (
            {},
            '--text "it\'s" --sagemaker.save_every 5m',
            r"cannot send text, sagemaker\.save_every.*HINT.*stage=FOLDER",
        ),
    ],
)
def test_what_sdk_v3_cannot_send(source, given, words, message):
    with pytest.raises(LaunchError, match=message):
        model_trainer_kwargs({**GIVEN, **given}, words, account=ACCOUNT)


@pytest.mark.jobs
def test_a_model_trainer_sends_the_request_of_launch(source, tmp_path):
    python = os.environ.get("LIGHTNING_SM_SDK_V3_PYTHON")
    if python is None:
        pytest.skip("LIGHTNING_SM_SDK_V3_PYTHON names no Python with sagemaker-train and moto")
    given = {
        **GIVEN,
        "instance_type": "ml.g5.12xlarge",
        "instances": 2,
        "distribution": "mpi",
        "processes_per_host": 4,
        "source_dir": str(source),
        "spot": True,
        "channels": {"training": {"uri": "s3://b/x", "sharded": True}, "files": "efs://fs-01234567/data"},
        "tags": {"team": "vision"},
        "environment": {"A": "1"},
        "metrics": ["val_loss"],
        "retries": 2,
        "tensorboard_output": "s3://bucket/tensorboard",
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
        "encrypt_traffic": True,
        "volume_kms_key": "key-1",
        "output_kms_key": "key-2",
    }
    job = {"settings": given, "command": "fit --config config.yaml --model.lr 0.1"}
    done = subprocess.run(
        [python, str(HERE / "record_sdk_v3.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
    )
    sent = json.loads(done.stdout.partition("REQUEST ")[2])
    rest = {name: value for name, value in given.items() if name != "metrics"}
    want = request_of("job-1", metric_definitions(["val_loss"]), **rest).as_body()
    same = ("OutputDataConfig", "ResourceConfig", "VpcConfig", "StoppingCondition", "Tags", "RoleArn", "RetryStrategy")
    same += ("Environment", "EnableManagedSpotTraining", "EnableInterContainerTrafficEncryption")
    assert {key: sent[key] for key in same} == {key: want[key] for key in same}
    assert sent["InputDataConfig"][:2] == want["InputDataConfig"]
    for key in ("TrainingImage", "TrainingInputMode", "MetricDefinitions"):
        assert sent["AlgorithmSpecification"][key] == want["AlgorithmSpecification"][key]
    assert sent["TensorBoardOutputConfig"]["S3OutputPath"] == "s3://bucket/tensorboard"
    assert sent["HyperParameters"] == {"model__lr": "0.1", "config": "config.yaml"}
    assert sent["CheckpointConfig"]["S3Uri"].endswith("/checkpoints")


NET = """
import json, os
from typing import List, Optional
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

class Net(BoringModel):
    def __init__(
        self, lr: float = 1.0, text: str = "", words: Optional[List[str]] = None, code: str = "", a__b: int = 0
    ):
        super().__init__()
        self.save_hyperparameters()

    def on_fit_end(self):
        with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w") as file:
            json.dump({**self.hparams, "steps": self.global_step}, file)
"""
CONFIG = """
model: {class_path: net.Net, init_args: {text: of the file}}
trainer: {limit_train_batches: 1, limit_val_batches: 0, max_epochs: 1, accelerator: cpu}
"""


@pytest.mark.rehearsal
@needs(torch=True, v3=True)
def test_dots_and_quotes_arrive_with_their_types_through_sdk_v3(source, tmp_path):
    (source / "train.py").write_text("from lightning_sm.cli import main\n\nmain()\n")
    (source / "net.py").write_text(textwrap.dedent(NET))
    (source / "config.yaml").write_text(CONFIG)
    words = ["fit", "--config", "config.yaml", "--model.lr", "0.25", "--trainer.max_epochs", "2"]
    words += ["--model.text", 'it\'s "so"', "--model.words", "[a, it's]", "--model.code", "'[1]'"]
    words += ["--model.a__b", "7", "--sagemaker.export", "false"]
    kwargs = model_trainer_kwargs(GIVEN, words, account=ACCOUNT, stage=tmp_path / "stage")
    assert kwargs["hyperparameters"] == {
        "model__lr": 0.25,
        "trainer__max_epochs": 2,
        "model__code": '"[1]"',
        "config": ["config.yaml", "launch_values.yaml"],
    }
    folders = RehearsalOptions(
        source_dir=kwargs["source_code"]["source_dir"], requirements=False, output_dir=str(tmp_path / "out")
    )
    entry_script = kwargs["source_code"]["entry_script"]
    request = create_request(entry_script, folders, sdk="v3", hyperparameters=kwargs["hyperparameters"])
    outcome = rehearse(request)
    assert outcome.exit_code == 0, outcome.failure_reason
    (model,) = (tmp_path / "out").rglob("model.tar.gz")
    with tarfile.open(model) as archive:
        name = next(name for name in archive.getnames() if name.endswith("seen.json"))
        seen = json.load(archive.extractfile(name))
    assert {name: value for name, value in seen.items() if not name.startswith("_")} == {
        "lr": 0.25,
        "text": 'it\'s "so"',
        "words": ["a", "it's"],
        "code": "[1]",
        "a__b": 7,
        "steps": 2,
    }
