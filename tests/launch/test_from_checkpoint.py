"""``--from-checkpoint``: another job goes on from the checkpoints of an older one, which it finds in its own prefix."""

import io
import json
import tarfile

import pytest

from lightning_sm.launch import main
from lightning_sm.rehearse import RehearsalOptions, rehearse, request_from_body
from tests.helpers.rehearsal import needs
from tests.launch.test_send import OPTIONS, launch, source  # noqa: F401 - the folder with the program

OLD = "s3://bucket/job-0/checkpoints"


def put(session, *names):
    for name in names:
        session.client("s3").put_object(Bucket="bucket", Key=f"job-0/checkpoints/{name}", Body=name.encode())


def copied(session, job):
    prefix = f"{job}/checkpoints/"
    objects = session.client("s3").list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", ())
    return sorted(each["Key"][len(prefix) :] for each in objects)


SERIES = ("train-0a1b2c/fit-0/step-8.ckpt", "train-0a1b2c/fit-0/step-8.json", "train-0a1b2c/fit-0/fit.json")


@pytest.mark.services
def test_checkpoints_are_copied_to_the_jobs_own_prefix(aws, capsys):
    put(aws, "epoch=0.ckpt", *SERIES)
    code, _, err = launch("--name", "job-1", "--from-checkpoint", OLD, "fit", "--model.lr", "1", capsys=capsys)
    assert code == 0, err
    assert copied(aws, "job-1") == sorted(["epoch=0.ckpt", *SERIES])
    job = aws.client("sagemaker").describe_training_job(TrainingJobName="job-1")
    assert job["HyperParameters"]["sagemaker.resume"] == '"require"'
    assert job["HyperParameters"]["model.lr"] == "1"
    body = aws.client("s3").get_object(Bucket="bucket", Key=f"job-1/checkpoints/{SERIES[0]}")["Body"].read()
    assert body == SERIES[0].encode()


@pytest.mark.services
def test_no_save_there_creates_no_job_and_uploads_nothing(aws, capsys):
    put(aws, "last.ckpt")
    for start in (OLD, f"{OLD}/none", "s3://bucket/job"):
        code, _, err = launch("--from-checkpoint", start, capsys=capsys)
        assert code == 1
        assert "holds no save of a job" in err
    code, _, err = launch("--from-checkpoint", "s3://none/x", capsys=capsys)
    assert code == 1
    assert "s3:ListBucket of s3://none/x failed" in err
    code, _, err = launch("--from-checkpoint", f"{OLD}/last.ckpt", capsys=capsys)
    assert code == 1
    assert "--ckpt_path" in err
    assert aws.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert len(aws.client("s3").list_objects_v2(Bucket="bucket")["Contents"]) == 1


@pytest.mark.services
def test_a_dry_run_copies_nothing(aws, capsys):
    put(aws, *SERIES)
    code, out, _ = launch("--name", "job-1", "--from-checkpoint", OLD, "--dry-run", capsys=capsys)
    assert code == 0
    assert json.loads(out)["HyperParameters"]["sagemaker.resume"] == '"require"'
    assert copied(aws, "job-1") == []


NET = """
import json, os
from pytorch_lightning.demos.boring_classes import BoringModel

class Net(BoringModel):
    def on_train_start(self):
        self.first = self.trainer.global_step

    def on_fit_end(self):
        with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w") as file:
            json.dump([self.first, self.trainer.global_step], file)
"""
CONFIG = """
model: {class_path: net.Net}
trainer: {limit_train_batches: 3, limit_val_batches: 0, accelerator: cpu}
"""


@pytest.mark.rehearsal
@needs(torch=True)
def test_a_rehearsed_job_goes_on_where_another_ended(aws, source, capsys):  # noqa: F811
    (source / "train.py").write_text("from lightning_sm.cli import main\n\nmain()\n")
    (source / "net.py").write_text(NET)
    (source / "config.yaml").write_text(CONFIG)
    steps = {}
    for name, epochs, options in (("job-0", "1", ()), ("job-1", "2", ("--from-checkpoint", OLD))):
        where = ("--image", "pytorch-2.8-cpu", "--instance-type", "ml.m5.xlarge", *OPTIONS[4:], "--name", name)
        words = ("fit", "--config", "config.yaml", "--trainer.max_epochs", epochs, "--sagemaker.export", "false")
        assert main([*where, *options, *words]) == 0, capsys.readouterr().err
        body = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
        outcome = rehearse(request_from_body(body, RehearsalOptions(upload=True)))
        assert outcome.exit_code == 0, outcome.failure_reason
        model = aws.client("s3").get_object(Bucket="bucket", Key=f"{name}/output/model.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(model)) as archive:
            member = next(each for each in archive.getnames() if each.endswith("seen.json"))
            steps[name] = json.load(archive.extractfile(member))
    assert steps == {"job-0": [0, 3], "job-1": [3, 6]}
