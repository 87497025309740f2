"""Checkpoints at s3:// URLs in whole trainings, with a real S3 server on this machine."""

import os
import time
from unittest import mock

import pytest
import torch

from lightning_sm import trainer_settings
from lightning_sm._checkpoint.storage import forget_systems
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import auto_resume
from lightning_sm.errors import CheckpointError
from tests.helpers.s3 import FailingProxy, s3_server
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import log_lines

pytestmark = pytest.mark.services

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()
# Steps in an epoch.
EPOCH = 8


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    with s3_server() as server, mock.patch.dict(os.environ, server.variables):
        yield server
    forget_systems()


@pytest.fixture
def job(s3, opt_ml, monkeypatch, request):
    opt_ml.host("algo-1")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(opt_ml.base))
    monkeypatch.setenv("SM_NUM_GPUS", "0")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.chdir(opt_ml.base)
    forget_systems()
    prefix = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    yield Job(s3, prefix, monkeypatch, opt_ml)
    forget_systems()


class Job:
    """A job that can be restarted. Each fit stands for a process of its own."""

    def __init__(self, s3, prefix, monkeypatch, opt_ml):
        self.s3, self.prefix, self.url, self.opt_ml = s3, prefix, f"s3://logs/{prefix}", opt_ml
        self.monkeypatch = monkeypatch

    def fit(self, epochs=2, *, stop_after=None, options=None, callbacks=(), ckpt_path=None, **arguments):
        auto_resume._finished_directories.clear()
        self.model, self.steps = tiny_model(PL), 0
        batch_end = self.model.on_train_batch_end

        def count(*given, **named):
            self.steps += 1
            if stop_after == self.steps:
                raise Interrupted
            return batch_end(*given, **named)

        self.model.on_train_batch_end = count
        sagemaker = {"checkpoint_dir": self.url, "report": False, "log_metrics": False, **(options or {})}
        with log_lines() as self.said:
            self.trainer = PL.Trainer(
                **trainer_settings(
                    sagemaker=sagemaker, trainer_class=PL.Trainer, max_epochs=epochs, accelerator="cpu", logger=False,
                    enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks), **arguments,
                )
            )  # fmt: skip
            self.trainer.fit(self.model, loader(), loader(), ckpt_path=ckpt_path)
        return self

    def interrupted(self, after, **more):
        with pytest.raises(Interrupted):
            self.fit(stop_after=after, **more)
        return self

    def names(self):
        """What is below the prefix."""
        return sorted(name[len(self.prefix) + 1 :] for name in self.s3.names(f"{self.prefix}/"))

    def content(self, name):
        return self.s3.client.get_object(Bucket="logs", Key=f"{self.prefix}/{name}")["Body"].read()

    def put(self, name, content):
        self.s3.client.put_object(Bucket="logs", Key=f"{self.prefix}/{name}", Body=content)

    def __contains__(self, words):
        return any(words in line for line in self.said)


@pytest.fixture(scope="module")
def expected():
    """The weights of plain Lightning after two epochs."""
    trainer = PL.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    model = tiny_model(PL)
    trainer.fit(model, loader(), loader())
    return weights(model)


def test_a_restarted_job_goes_on_and_a_finished_one_does_not(job, expected):
    job.interrupted(EPOCH + 3)
    assert job.names() == ["last.ckpt"]
    job.fit()
    assert "Resuming from last.ckpt (epoch 0, step 8)" in job
    assert (job.steps, weights(job.model)) == (EPOCH, expected)
    assert {"finished.json", "last.ckpt"} <= set(job.names())
    job.fit()
    assert job.steps == 0
    assert "This job had finished" in job
    assert weights(job.model) == expected


def test_a_position_within_an_epoch_is_resumed(job, expected):
    job.interrupted(EPOCH + 3, options={"save_every": "0.001s"}, callbacks=[_each_step(job.url)])
    job.fit(callbacks=[_each_step(job.url)])
    assert job.steps < EPOCH
    assert weights(job.model) == expected


def test_a_damaged_object_is_rejected_by_name_and_an_older_one_used(job, expected):
    job.interrupted(EPOCH + 3, callbacks=[_each_step(job.url)])
    newest = max((name for name in job.names() if name.startswith("each-")), key=lambda name: int(name[10:-5]))
    content = bytearray(job.content(newest))
    content[len(content) // 2] ^= 0xFF
    job.put(newest, bytes(content))
    job.put("truncated.ckpt", bytes(content[: len(content) // 2]))
    job.put("weights.ckpt", b"no archive")
    job.fit(callbacks=[_each_step(job.url)])
    assert f"Rejected {newest}: its record" in job
    assert "Rejected truncated.ckpt: it is truncated" in job
    assert "Resuming from each-" in job
    assert weights(job.model) == expected


def test_another_jobs_checkpoints_are_refused(job):
    job.interrupted(EPOCH + 3)
    job.monkeypatch.setenv("TRAINING_JOB_NAME", "job-2")
    with pytest.raises(CheckpointError, match=r"s3://logs/.* was written by the job job-1, and this is the job job-2"):
        job.fit()
    assert job.names() == ["last.ckpt"]
    job.fit(options={"resume": "always"})
    assert job.steps == EPOCH


def test_require_needs_a_checkpoint_and_never_ignores_it(job):
    with pytest.raises(CheckpointError, match="resume is require, and no checkpoint in s3://"):
        job.fit(options={"resume": "require"})
    assert "resume is require" in (job.opt_ml.base / "output" / "failure").read_text()
    job.fit(1)
    job.fit(options={"resume": "never"})
    assert job.steps == 2 * EPOCH
    job.fit(3, options={"resume": "require"})
    assert job.steps == EPOCH


def test_the_dirpath_of_a_checkpoint_callback_resumes_without_a_directory_of_sagemakers(job, expected):
    options = {"checkpoint_dir": None}
    best = PL.callbacks.ModelCheckpoint(f"{job.url}/best", monitor="val_loss", save_top_k=1)
    job.interrupted(EPOCH + 3, options=options, callbacks=[best])
    again = PL.callbacks.ModelCheckpoint(f"{job.url}/best", monitor="val_loss", save_top_k=1)
    job.fit(options=options, callbacks=[again])
    assert f"resumed from {job.url}/best" in job
    assert (job.steps, weights(job.model)) == (EPOCH, expected)


def test_the_best_are_kept_and_others_removed(job):
    best = PL.callbacks.ModelCheckpoint(job.url, "best-{epoch}", monitor="val_loss", save_top_k=1)
    job.fit(3, callbacks=[best])
    kept = [name for name in job.names() if name.startswith("best-")]
    assert [os.path.basename(best.best_model_path)] == kept
    assert "the best model" in "\n".join(job.said)


def test_saves_in_the_background_arrive(job, expected):
    job.interrupted(EPOCH + 3, options={"async_save": True}, callbacks=[_each_step(job.url)])
    job.fit(options={"async_save": True}, callbacks=[_each_step(job.url)])
    assert weights(job.model) == expected
    assert len([name for name in job.names() if name.startswith("each-")]) == 2


def test_a_stop_saves_and_older_stops_are_removed(job, expected):
    job.put("stopped-step=1.ckpt", b"old")
    with pytest.raises(SystemExit):
        job.fit(callbacks=[_Terminate(EPOCH + 2)])
    assert "stopped-step=1.ckpt" not in job.names()
    (stopped,) = [name for name in job.names() if name.startswith("stopped")]
    job.fit()
    assert f"Resuming from {stopped}" in job
    assert weights(job.model) == expected


def test_a_save_that_fails_in_the_middle_is_an_error_and_the_older_one_stays(job, expected):
    proxy = FailingProxy(job.s3.port)
    job.monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    forget_systems()

    class Deny(PL.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                proxy.status = 403

    try:
        with pytest.raises(CheckpointError, match=r"s3://logs/.*HINT: The job's role needs"):
            job.fit(callbacks=[Deny()])
    finally:
        proxy.close()
    job.monkeypatch.setenv("AWS_ENDPOINT_URL", job.s3.variables["AWS_ENDPOINT_URL"])
    forget_systems()
    job.fit()
    assert "Resuming from last.ckpt (epoch 0, step 8)" in job
    assert weights(job.model) == expected


def test_a_ckpt_path_is_downloaded_loaded_and_never_removed(job, expected, tmp_path):
    job.interrupted(EPOCH + 3)
    given, elsewhere = f"{job.url}/last.ckpt", {"checkpoint_dir": str(tmp_path / "checkpoints")}
    job.monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job.fit(options=elsewhere, ckpt_path=given)
    assert f"Downloading last.ckpt from {job.url}" in job
    assert f"Resuming from {given}, given as ckpt_path" in job
    assert (job.steps, weights(job.model)) == (EPOCH, expected)
    assert job.names() == ["last.ckpt"]
    (found,) = job.trainer.test(tiny_model(PL), loader(), ckpt_path=given, verbose=False)
    plain = PL.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    assert plain.test(tiny_model(PL), loader(), ckpt_path=given, verbose=False) == [found]
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "opt-ml"]


def test_a_ckpt_path_that_is_not_there_or_denied_is_an_error_with_a_hint(job, tmp_path):
    elsewhere = {"checkpoint_dir": str(tmp_path)}
    with pytest.raises(CheckpointError, match=r"There is no checkpoint s3://logs/.*/last\.ckpt\. HINT: "):
        job.fit(options=elsewhere, ckpt_path=f"{job.url}/last.ckpt")
    with pytest.raises(CheckpointError, match=r"s3://no-such/last.ckpt cannot be listed.* HINT: Create the bucket"):
        job.fit(options=elsewhere, ckpt_path="s3://no-such/last.ckpt")
    proxy = FailingProxy(job.s3.port)
    proxy.status = 403
    job.monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    forget_systems()
    try:
        with pytest.raises(CheckpointError, match=r"HINT: The job's role needs s3:ListBucket"):
            job.fit(options=elsewhere, ckpt_path=f"{job.url}/last.ckpt")
    finally:
        proxy.close()
    assert job.steps == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket/x", "cannot be listed.*HINT: Create the bucket"),
        ("gs://bucket/x", "neither a local directory nor a URL of S3.* HINT: "),
        ("file:///tmp/x", "HINT: Write the path without"),
    ],
)
def test_a_directory_that_cannot_be_used_ends_the_job_before_training(job, url, words):
    with pytest.raises(CheckpointError, match=words):
        job.fit(options={"checkpoint_dir": url})
    assert job.steps == 0
    assert "HINT" in (job.opt_ml.base / "output" / "failure").read_text()


def test_only_what_describes_a_candidate_is_read(job):
    job.interrupted(EPOCH + 3)
    large = {**torch.load(_file(job.content("last.ckpt")), weights_only=False), "ballast": torch.rand(5_000_000)}
    torch.save(large, "large.ckpt")
    job.s3.client.upload_file("large.ckpt", "logs", f"{job.prefix}/large.ckpt")
    from lightning_sm._checkpoint.candidates import list_candidates
    from lightning_sm._checkpoint.remote import CheckpointCopies

    copies = CheckpointCopies(job.url)
    copies.refresh(job.trainer if hasattr(job, "trainer") else PL.Trainer(logger=False, accelerator="cpu"))
    names = {candidate.name: candidate for candidate in list_candidates(copies.path)}
    assert names["large.ckpt"].problem is None
    assert names["large.ckpt"].global_step == EPOCH
    path = os.path.join(copies.path, "large.ckpt")
    assert os.path.getsize(path) == os.path.getsize("large.ckpt")
    assert os.stat(path).st_blocks * 512 < 3_000_000
    copies.fetch("large.ckpt")
    with open(path, "rb") as one, open("large.ckpt", "rb") as other:
        assert one.read() == other.read()
    copies.close()
    assert not os.path.exists(path)


def test_nothing_of_a_run_is_left_in_the_temporary_directory(job, tmp_path):
    job.monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job.interrupted(EPOCH + 3)
    job.fit()
    # The folder of the interrupted run, which is lost with its container, holds what describes its checkpoints.
    left = [name for name in os.listdir(tmp_path) if name.startswith("lightning-sm")]
    assert len(left) <= 1


def _each_step(url):
    return PL.callbacks.ModelCheckpoint(
        url, "each-{step}", monitor="step", mode="max", every_n_train_steps=1, save_top_k=2
    )


def _file(content):
    import io

    return io.BytesIO(content)


class _Terminate(PL.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *args, **kwargs):
        if trainer.global_step == self.step:
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
