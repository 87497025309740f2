"""Jobs that were sent, or drawn from a tuning job, run by SageMaker's container software."""

import io
import json
import re
import tarfile

import pytest

from lightning_sm.launch import main, tune
from lightning_sm.rehearse import RehearsalOptions, rehearse, request_from_body
from tests.helpers.rehearsal import command_line, needs, run_rehearsal

pytestmark = pytest.mark.rehearsal
PROGRAM = """
import json, os, sys
from importlib.metadata import version

import lightning_sm

job = lightning_sm.job()
folder = os.environ["SM_MODEL_DIR"]
with open(os.path.join(folder, "seen.json"), "w") as file:
    json.dump({
        "words": sys.argv[1:],
        "values": dict(job.hyperparameters.values),
        "name": job.name,
        "place": lightning_sm.__file__,
        "version": version("lightning-sm"),
    }, file)
"""


def test_what_was_sent_runs_to_the_end(aws, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sagemaker_training", reason="the extra rehearse is not installed")
    source = tmp_path / "my_project"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    (source / "data.log").write_text("x")
    (source / ".gitignore").write_text("*.log")
    monkeypatch.chdir(source)
    aws.client("s3").put_object(Bucket="bucket", Key="data/a.txt", Body=b"1")
    role = "arn:aws:iam::123456789012:role/Trainer"
    words = ["--image", "pytorch-2.8-cpu", "--instance-type", "ml.m5.xlarge", "--role", role, "--bucket", "bucket"]
    words += ["--name", "job-1", "--channel", "training=s3://bucket/data", "fit", "--model.lr", "0.1", "--text", "it's"]
    assert main(words) == 0, capsys.readouterr().err
    body = aws.client("sagemaker").describe_training_job(TrainingJobName="job-1")
    outcome = rehearse(request_from_body(body, RehearsalOptions(upload=True)))
    assert outcome.exit_code == 0, outcome.failure_reason
    model = aws.client("s3").get_object(Bucket="bucket", Key="job-1/output/model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(model)) as archive:
        member = next(name for name in archive.getnames() if name.endswith("seen.json"))
        seen = json.load(archive.extractfile(member))
    assert seen["values"] == {"model.lr": 0.1, "text": "it's"}
    assert seen["words"] == ["--model.lr", "0.1", "--text", "it's"]
    assert seen["name"] == "job-1"
    assert "site-packages" in seen["place"]


# A project that knows nothing of SageMaker or of tuning jobs.
MODEL = """
import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self, lr: float, size: int = 1, optimizer: str = "sgd", dropout: float = 0.0, version: str = "1"):
        super().__init__()
        self.lr, self.optimizer, self.version = lr, optimizer, version
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, size), torch.nn.Dropout(dropout), torch.nn.Linear(size, 1))
        print(f"given {[lr, size, optimizer, dropout, version]!r}\\n", end="", flush=True)

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 1 / (1 + self.layers(batch[0]).pow(2).mean()))
        self.log("other_val_acc", 2.0)

    def configure_optimizers(self):
        optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[self.optimizer]
        return optimizer(self.parameters(), lr=self.lr)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

    val_dataloader = train_dataloader
"""
CONFIG = """
trainer: {max_epochs: 3, enable_progress_bar: false, enable_model_summary: false, logger: false}
model: {class_path: net.Net, init_args: {lr: 7.0}}
"""
LAUNCH = """
image: pytorch-2.8-cpu
role: arn:aws:iam::123456789012:role/Trainer
instance_type: ml.m5.xlarge
bucket: bucket
region: us-east-1
tuning:
  objective: val_acc
  direction: maximize
  max_jobs: 4
  ranges:
    lr: {min: 1e-5, max: 1e-1, scale: log}
    model__size: {min: 2, max: 9, type: integer}
    model.optimizer: [adam, sgd]
    model.init_args.dropout: {min: 0.0, max: 0.5}
    version: ["2", "3"]
"""


@needs(torch=True)
def test_a_job_drawn_from_a_tuning_job(tmp_path, monkeypatch, capsys):
    source = tmp_path / "source"
    source.mkdir()
    (source / "net.py").write_text(MODEL)
    (source / "config.yaml").write_text(CONFIG)
    (source / "train.py").write_text("from lightning_sm.cli import main\n\nmain()\n")
    (source / "launch.yaml").write_text(LAUNCH)
    monkeypatch.chdir(source)
    assert tune(["--draw", "3", "--dry-run", "fit", "--config", "config.yaml"]) == 0, capsys.readouterr().err
    request = tmp_path / "request.json"
    request.write_text(capsys.readouterr().out)
    body = json.loads(request.read_text())
    sent = body["HyperParameters"]
    options = ("--request", request, "--output-dir", tmp_path / "out", "--timeout", "160s", "--json")
    done = run_rehearsal(command_line(source, *options))
    assert done.exit_code == 0, done.log
    (given,) = {match for match in re.findall(r"given (\[.*\])", done.log)}
    values = [float(sent["lr"]), int(sent["model__size"]), json.loads(sent["model.optimizer"])]
    values += [float(sent["model.init_args.dropout"]), json.loads(sent["version"])]
    assert given == repr(values)
    assert values[4] in ("2", "3")
    (definition,) = body["AlgorithmSpecification"]["MetricDefinitions"]
    found = [float(match) for line in done.log.splitlines() for match in re.findall(definition["Regex"], line)]
    assert (definition["Name"], len(found)) == ("val_acc", 3)
    assert all(0 < value < 1 for value in found)
