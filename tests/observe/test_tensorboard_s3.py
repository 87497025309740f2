"""Jobs whose TensorBoardLogger writes to ``s3://``, on a real S3 server, read back by TensorBoard's own reader."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.helpers.processes import local_rendezvous
from tests.helpers.program import Program
from tests.helpers.s3 import FailingProxy

pytestmark = pytest.mark.full

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")

SCRIPT = Path(__file__).with_name("train_logged.py")
LOGGER = ("--trainer.logger=TensorBoardLogger", "--trainer.logger.name=net")
TO_S3 = (*LOGGER, "--trainer.logger.save_dir=s3://logs/runs")
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.log_every_n_steps=1")


@pytest.fixture
def proxy(s3):
    proxy = FailingProxy(s3.port)
    yield proxy
    proxy.close()


class Job(Program):
    """The script, which writes a line for each step into a file."""

    def __init__(self, folder, s3, **variables):
        self.steps = folder / "steps"
        super().__init__(folder, SCRIPT, "fit", *QUIET, "--sagemaker.upload_every=200ms")
        self.environ.update(s3.variables, TRAINING_JOB_NAME="job-1", STEPS=self.steps, **variables)

    def steps_done(self):
        return len(self.steps.read_text().split()) if self.steps.exists() else 0


def read_back():
    """The steps of the loss, as TensorBoard reads them from S3 itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("s3://logs/runs/net/job-1", size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars("loss")] if "loss" in events.Tags()["scalars"] else []


def test_killed_restarted_and_stopped_it_goes_on_in_the_same_curve(s3, tmp_path):
    words = (*TO_S3, "--trainer.max_epochs=-1", "--sagemaker.save_every=1s")
    job = Job(tmp_path, s3, STEP_SECONDS=0.1).start(*words)
    job.until(lambda: job.steps_done() > 15 and len(read_back()) > 10)
    job.process.send_signal(signal.SIGKILL)
    job.wait()
    done = job.steps_done()
    seen = read_back()
    # At most what was logged within one interval and the second that an upload takes is lost.
    assert done - len(seen) <= 15
    # SageMaker keeps checkpoints only.
    subprocess.run(["rm", "-rf", str(tmp_path / "output")], check=True)
    job.start(*words, "--sagemaker.upload_every=60s")
    job.until(lambda: job.steps_done() > done + 20)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait().code == 143, job.output
    resumed = re.search(r"Resuming fit 0 of this program from step-0*(\d+)", job.output)
    assert resumed, job.output
    assert s3.folders() == ["runs/net/job-1"]
    assert len([name for name in s3.names() if "tfevents" in name]) == 2
    steps, last = read_back(), int(job.steps.read_text().split()[-1])
    assert steps[: len(seen)] == seen
    assert steps[-1] in (last - 1, last - 2)
    # A checkpoint may be newer than the last upload: the steps between them are what the interval lost.
    assert set(range(steps[-1])) - set(steps) == set(range(len(seen), int(resumed.group(1))))


def test_written_while_training_and_complete_after_an_endpoint_has_failed_for_a_while(s3, proxy, tmp_path):
    job = Job(tmp_path, s3, AWS_ENDPOINT_URL=proxy.url, STEP_SECONDS=0.05, FINISH=tmp_path / "finish")
    job.start(*TO_S3, "--trainer.max_epochs=-1")
    job.until(lambda: s3.folders() == ["runs/net/job-1"] and len(read_back()) > 3)
    proxy.status = 503
    job.until(lambda: "cannot be uploaded to s3://logs/runs" in job.output)
    steps = job.steps_done()
    job.until(lambda: job.steps_done() > steps + 10)
    proxy.status = None
    job.until(lambda: "uploaded to s3://logs/runs again" in job.output)
    (tmp_path / "finish").touch()
    assert job.wait().code == 0, job.output
    assert read_back() == list(range(job.steps_done()))
    assert job.output.count("cannot be uploaded to s3://logs/runs") == 1
    assert "Not uploaded" not in job.output
    assert "runs/net/job-1/hparams.yaml" in s3.names()
    spool = tmp_path / "output" / "data" / "tensorboard" / "logs" / "runs"
    place = f"{spool} ← uploaded to s3://logs/runs (replaces s3://logs/runs"
    assert f"trainer.logger.init_args.save_dir = {place}" in job.output
    assert "trainer.logger.init_args.version = job-1 ← the job's name, TRAINING_JOB_NAME" in job.output
    # SageMaker uploads them a second time, with the rest of the output.
    assert list(spool.rglob("*tfevents*"))


def test_stopped_while_the_endpoint_takes_connections_and_never_answers(s3, proxy, tmp_path):
    job = Job(tmp_path, s3, AWS_ENDPOINT_URL=proxy.url, STEP_SECONDS=0.05)
    job.start(*TO_S3, "--trainer.max_epochs=-1")
    job.until(lambda: len(read_back()) > 3)
    proxy.status = 0
    steps = job.steps_done()
    job.until(lambda: proxy.refused and job.steps_done() > steps + 20)
    started = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    # SageMaker kills after 120 s.
    assert time.monotonic() - started < 60
    assert job.code == 143, job.output
    assert list((tmp_path / "checkpoints").glob("*.ckpt"))
    assert re.search(r"Not uploaded to s3://logs/runs: .*They remain in ", job.output)


def test_two_processes_write_once_and_weights_are_those_without_it(s3, tmp_path):
    weights = {}
    for name, words in (("s3", TO_S3), ("local", LOGGER)):
        folder = tmp_path / name
        folder.mkdir()
        job = Job(folder, s3, RESULT=folder / "weights")
        job.run(
            *words,
            "--trainer.max_steps=6",
            "--trainer.accelerator=cpu",
            "--sagemaker.upload_every=20ms",
            launcher=("-m", "torch.distributed.run", "--nproc_per_node=2", "--nnodes=1", *local_rendezvous()),
        )
        assert job.code == 0, job.output
        weights[name] = [(folder / f"weights-{rank}").read_text() for rank in (0, 1)]
    assert weights["s3"] == weights["local"]
    assert s3.folders() == ["runs/net/job-1"]
    assert len([name for name in s3.names() if "tfevents" in name]) == 1
