"""Jobs that were sent, or drawn from a tuning job, run by SageMaker's container software."""

import io
import json
import re
import tarfile

import pytest

from lightning_sm.rehearse import RehearsalOptions, rehearse, request_from_body
from tests.helpers.rehearsal import command_line, needs, run_rehearsal
from tests.launch.conftest import ROLE

pytestmark = pytest.mark.full
CPU = ("--image", "pytorch-2.8-cpu", "--instance-type", "ml.m5.xlarge", "--role", ROLE, "--bucket", "bucket")


def rehearsed(session, name):
    """Run a job that was sent, and return the file ``seen.json`` of its model."""
    body = session.client("sagemaker").describe_training_job(TrainingJobName=name)
    outcome = rehearse(request_from_body(body, RehearsalOptions(upload=True)))
    assert outcome.exit_code == 0, outcome.failure_reason
    model = session.client("s3").get_object(Bucket="bucket", Key=f"{name}/output/model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(model)) as archive:
        member = next(each for each in archive.getnames() if each.endswith("seen.json"))
        return json.load(archive.extractfile(member))


COUNTING_NET = """
import json, os
import lightning_sm
from pytorch_lightning.demos.boring_classes import BoringModel

class Net(BoringModel):
    def __init__(self, text: str):
        super().__init__()

    def on_train_start(self):
        self.first = self.trainer.global_step

    def on_fit_end(self):
        with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w") as file:
            job = lightning_sm.job()
            words = job.hyperparameters.values["text"]
            json.dump([self.first, self.trainer.global_step, job.name, words, lightning_sm.__file__], file)
"""
COUNTING_CONFIG = """
model: {class_path: net.Net}
trainer: {limit_train_batches: 3, limit_val_batches: 0, accelerator: cpu}
"""


@needs(torch=True)
def test_a_job_that_was_sent_runs_and_another_goes_on_where_it_ended(aws, run, project):
    aws.client("s3").put_object(Bucket="bucket", Key="data/a.txt", Body=b"1")
    (project / "train.py").write_text("from lightning_sm.cli import main\n\nmain()\n")
    (project / "net.py").write_text(COUNTING_NET)
    (project / "config.yaml").write_text(COUNTING_CONFIG)
    steps = {}
    for name, epochs, start in (
        ("job-0", "1", ()),
        ("job-1", "2", ("--from-checkpoint", "s3://bucket/job-0/checkpoints")),
    ):
        words = ("fit", "--config", "config.yaml", "--trainer.max_epochs", epochs, "--text", "it's")
        channel = ("--channel", "training=s3://bucket/data")
        shown = run("launch", "--name", name, *channel, *start, *words, "--sagemaker.export", "false", options=CPU)
        assert shown.status == 0, shown.err
        *steps[name], seen, text, place = rehearsed(aws, name)
        assert (seen, text) == (name, "it's")
        assert "site-packages" in place
    assert steps == {"job-0": [0, 3], "job-1": [3, 6]}


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
def test_a_job_drawn_from_a_tuning_job(project, tmp_path, run):
    (project / "net.py").write_text(MODEL)
    (project / "config.yaml").write_text(CONFIG)
    (project / "train.py").write_text("from lightning_sm.cli import main\n\nmain()\n")
    (project / "launch.yaml").write_text(LAUNCH)
    shown = run("tune", "--draw", "3", "--dry-run", "fit", "--config", "config.yaml", options=())
    assert shown.status == 0, shown.err
    request = tmp_path / "request.json"
    request.write_text(shown.out)
    body = json.loads(request.read_text())
    sent = body["HyperParameters"]
    options = ("--request", request, "--output-dir", tmp_path / "out", "--timeout", "160s", "--json")
    done = run_rehearsal(command_line(project, *options))
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
