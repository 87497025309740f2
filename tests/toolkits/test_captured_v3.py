"""The body that SDK v3's ``ModelTrainer`` really sent (``capture_v3`` says how it was had), as a rehearsal."""

import importlib.metadata
import io
import json
import sys
import tarfile

import pytest

from lightning_sm.rehearse._sdk_v3 import drivers_folder
from tests.helpers.rehearsal import cli_request, needs, run_rehearsal

from .capture_v3 import CAPTURED, GENERATED

BODY = json.loads((CAPTURED / "body.json").read_text())

# The entry script of the captured job. Everything that the body says must have reached it.
TRAIN = """
import argparse, json, os
import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.demos.boring_classes import BoringModel
import lightning_sm

parser = argparse.ArgumentParser()
for name, kind in (("epochs", int), ("lr", float), ("note", str), ("nothing", json.loads), ("mapping", json.loads)):
    parser.add_argument("--" + name, type=kind)
options = parser.parse_args()
trainer = pl.Trainer(
    max_epochs=options.epochs, limit_train_batches=4, limit_val_batches=1, strategy=lightning_sm.SMDDPStrategy(),
    accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(BoringModel())
trainer.save_checkpoint("/opt/ml/checkpoints/last.ckpt")
if trainer.is_global_zero:
    open(os.path.join(os.environ["SM_MODEL_DIR"], "model"), "w").close()
told = {
    "options": vars(options),
    "ranks": [dist.get_rank(), dist.get_world_size()],
    "steps": trainer.global_step,
    "greeting": os.environ["GREETING"],
    "training": open(os.path.join(os.environ["SM_CHANNEL_TRAINING"], "words")).read(),
    "earlier": os.path.exists("/opt/ml/checkpoints/earlier"),
    "cwd": os.getcwd(),
}
print("told " + json.dumps(told), flush=True)
"""


@pytest.mark.full
@needs(v3=True)
def test_our_drivers_are_those_that_were_captured(tmp_path):
    installed, captured = importlib.metadata.version("sagemaker-train"), (CAPTURED / "version.txt").read_text().strip()
    if installed != captured:
        pytest.skip(f"sagemaker-train is {installed}, captured was {captured}")
    (tmp_path / "train.py").write_text("")
    options = ["--sdk", "v3", "--hosts", 2, "--processes", 1, "--distribution", "torch_distributed", "train.py"]
    ours = dict(cli_request(tmp_path, *options).scripts)
    sent = {name: (CAPTURED / name).read_text() for name in GENERATED}
    assert ours["sm_train.sh"] == sent["sm_train.sh"]
    assert json.loads(ours["distributed.json"]) == json.loads(sent["distributed.json"])
    assert json.loads(ours["sourcecode.json"])["entry_script"] == json.loads(sent["sourcecode.json"])["entry_script"]


def stage_inputs(client):
    """What ``ModelTrainer`` had uploaded before it made its call."""
    prefix = f"captured/{BODY['TrainingJobName']}/input"
    drivers = {path.relative_to(drivers_folder()): path for path in drivers_folder().rglob("*.py")}
    drivers.update({name: CAPTURED / name for name in GENERATED})
    for bucket in ("staging", "results"):
        client.create_bucket(Bucket=bucket)
    for name, path in drivers.items():
        client.put_object(Bucket="staging", Key=f"{prefix}/sm_drivers/{name}", Body=path.read_bytes())
    client.put_object(Bucket="staging", Key=f"{prefix}/code/train.py", Body=TRAIN.encode())
    client.put_object(Bucket="staging", Key=f"{prefix}/training/words", Body=b"x y")
    client.put_object(Bucket="results", Key="checkpoints/earlier", Body=b"1")


@pytest.mark.full
@needs("netns", torch=True, v3=True)
def test_a_captured_body_runs_from_bucket_to_bucket(s3):
    stage_inputs(s3.client)
    options = ("--json", "--timeout", "120s", "--isolation", "netns", "--env", "OMP_NUM_THREADS=1", "--upload")
    command = (sys.executable, "-m", "lightning_sm", "rehearse", *options, "--request", str(CAPTURED / "body.json"))
    done = run_rehearsal(command)
    assert (done.summary["job_name"], done.summary["distribution"]) == (BODY["TrainingJobName"], "torch_distributed")
    told = [json.loads(line.split("told ", 1)[1]) for line in done.log.splitlines() if "told {" in line]
    assert sorted(each["ranks"] for each in told) == [[0, 2], [1, 2]]
    values = {"epochs": 2, "lr": 0.05, "note": "a b", "nothing": None, "mapping": {"deep": True}}
    for each in told:
        assert each["options"] == values
        assert (each["steps"], each["greeting"], each["training"], each["earlier"]) == (8, "hello", "x y", True)
        assert each["cwd"] == "/opt/ml/input/data/code"
    results = {each["Key"] for each in s3.client.list_objects_v2(Bucket="results")["Contents"]}
    model = f"out/{BODY['TrainingJobName']}/output/model.tar.gz"
    assert {model, "checkpoints/earlier", "checkpoints/last.ckpt"} <= results
    with tarfile.open(fileobj=io.BytesIO(s3.client.get_object(Bucket="results", Key=model)["Body"].read())) as archive:
        assert archive.getnames() == ["model"]
