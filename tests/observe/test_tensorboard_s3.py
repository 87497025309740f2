"""Jobs whose TensorBoardLogger writes to ``s3://``, on a real S3 server, read back by TensorBoard's own reader."""

import contextlib
import re
import shutil
import signal
import time

import pytest
import pytorch_lightning as pl
import torch

from tests.helpers.processes import local_rendezvous
from tests.helpers.program import Program
from tests.helpers.s3 import FailingProxy
from tests.projects.container import TINY

pytestmark = pytest.mark.full

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")

LOGGER = ("--trainer.logger=TensorBoardLogger", "--trainer.logger.name=net")
TO_S3 = (*LOGGER, "--trainer.logger.save_dir=s3://logs/runs")


class Paced(pl.Callback):
    """In the program: each step takes a while."""

    def on_train_batch_end(self, *_):
        time.sleep(0.05)


def job_of(folder, s3, **variables):
    words = (
        *("fit", f"--config={TINY / 'config.yaml'}", "--data.data_dir=.", "--data.batch_size=1"),
        *("--trainer.limit_val_batches=0", "--trainer.log_every_n_steps=1", "--sagemaker.upload_every=200ms"),
        "--trainer.callbacks=tests.observe.test_tensorboard_s3.Paced",
    )
    return Program(folder / "job-1", TINY / "train.py", *words, **{**s3.variables, **variables})


def logged(job):
    """The steps whose loss was logged, by the job's own lines."""
    return [int(step) for step in re.findall(r"metrics at step (\d+), epoch \d+: .*\bloss=", job.output)]


def read_back():
    """The steps of the loss, as TensorBoard reads them from S3 itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("s3://logs/runs/net/job-1", size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars("loss")] if "loss" in events.Tags()["scalars"] else []


def test_killed_restarted_and_stopped_it_goes_on_in_the_same_curve(s3, tmp_path):
    words = (*TO_S3, "--trainer.max_epochs=-1", "--sagemaker.save_every=1s")
    job = job_of(tmp_path, s3).start(*words)
    job.until(lambda: len(logged(job)) > 30 and len(read_back()) > 10)
    job.process.send_signal(signal.SIGKILL)
    job.wait()
    done, seen = len(logged(job)), read_back()
    # At most what was logged within one interval and the second that an upload takes is lost.
    assert done - len(seen) <= 30
    # SageMaker keeps checkpoints only.
    shutil.rmtree(job.folder / "output")
    job.start(*words, "--sagemaker.upload_every=60s")
    job.until(lambda: len(logged(job)) > done + 30)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait().code == 143, job.output
    resumed = re.search(r"Resuming fit 0 of this program from step-0*(\d+)", job.output)
    assert resumed, job.output
    assert s3.folders() == ["runs/net/job-1"]
    assert len([name for name in s3.names() if "tfevents" in name]) == 2
    steps = read_back()
    assert steps[: len(seen)] == seen
    assert steps[-1] == logged(job)[-1]
    # A checkpoint may be newer than the last upload: the steps between them are what the interval lost.
    assert set(range(steps[-1])) - set(steps) == set(range(len(seen), int(resumed.group(1))))


def test_an_endpoint_that_fails_for_a_while_and_one_that_takes_connections_and_never_answers(s3, tmp_path):
    with contextlib.closing(FailingProxy(s3.port)) as proxy:
        job = job_of(tmp_path, s3, AWS_ENDPOINT_URL=proxy.url).start(*TO_S3, "--trainer.max_epochs=-1")
        job.until(lambda: s3.folders() == ["runs/net/job-1"] and len(read_back()) > 3)
        proxy.status = 503
        job.until(lambda: "cannot be uploaded to s3://logs/runs" in job.output)
        steps = len(logged(job))
        job.until(lambda: len(logged(job)) > steps + 10)
        proxy.status = None
        job.until(lambda: "uploaded to s3://logs/runs again" in job.output)
        found = read_back()
        assert found == list(range(len(found)))
        assert len(found) > steps
        assert job.output.count("cannot be uploaded to s3://logs/runs") == 1
        assert "runs/net/job-1/hparams.yaml" in s3.names()
        proxy.refused, proxy.status = 0, 0
        job.until(lambda: proxy.refused and len(logged(job)) > steps + 30)
        started = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait().code == 143, job.output
        # SageMaker kills after 120 s.
        assert time.monotonic() - started < 60
    assert list((job.folder / "checkpoints").glob("*.ckpt"))
    assert re.search(r"Not uploaded to s3://logs/runs: .*They remain in ", job.output)
    spool = job.folder / "output" / "data" / "tensorboard" / "logs" / "runs"
    place = f"{spool} ← uploaded to s3://logs/runs (replaces s3://logs/runs"
    assert f"trainer.logger.init_args.save_dir = {place}" in job.output
    assert "trainer.logger.init_args.version = job-1 ← the job's name, TRAINING_JOB_NAME" in job.output
    # SageMaker uploads them a second time, with the rest of the output.
    assert list(spool.rglob("*tfevents*"))


def test_two_processes_write_once_and_weights_are_those_without_it(s3, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--nnodes=1")
    words = ("--trainer.max_steps=6", "--trainer.max_epochs=2", "--trainer.accelerator=cpu")
    weights = []
    for name, logger in (("s3", TO_S3), ("local", LOGGER)):
        job = job_of(tmp_path / name, s3).run(*logger, *words, launcher=(*launcher, *local_rendezvous()))
        assert job.code == 0, job.output
        assert "Not uploaded" not in job.output
        weights.append(torch.load(job.folder / "model" / "model.pt", weights_only=True)["layer.weight"])
    assert torch.equal(*weights)
    assert read_back() == list(range(6))
    assert s3.folders() == ["runs/net/job-1"]
    assert len([name for name in s3.names() if "tfevents" in name]) == 1
