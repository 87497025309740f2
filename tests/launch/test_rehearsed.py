"""A job that was sent is fetched again, from the service and from S3, and run by SageMaker's container software."""

import io
import json
import tarfile

import pytest

from lightning_sm.launch import main
from lightning_sm.rehearse import rehearse, request_from_body

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
    outcome = rehearse(request_from_body(body))
    assert outcome.exit_code == 0, outcome.failure_reason
    model = aws.client("s3").get_object(Bucket="bucket", Key="job-1/output/model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(model)) as archive:
        member = next(name for name in archive.getnames() if name.endswith("seen.json"))
        seen = json.load(archive.extractfile(member))
    assert seen["values"] == {"model.lr": 0.1, "text": "it's"}
    assert seen["words"] == ["--model.lr", "0.1", "--text", "it's"]
    assert seen["name"] == "job-1"
    assert "site-packages" in seen["place"]
