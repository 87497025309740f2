"""Jobs that were sent, run by SageMaker's container software. Of a tuning job: ``tests/tools/test_acceptance.py``."""

import io
import json
import tarfile

import pytest

from lightning_sm.rehearse import RehearsalOptions, rehearse, request_from_body
from tests.helpers.rehearsal import needs
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
