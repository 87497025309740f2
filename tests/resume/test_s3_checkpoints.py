"""Checkpoints at s3:// URLs in whole trainings, with a real S3 server on this machine."""

import os

import pytest

from lightning_sm import trainer_settings
from lightning_sm._resume.storage import forget_systems
from lightning_sm.errors import CheckpointError
from tests.helpers.s3 import FailingProxy
from tests.helpers.tiny import loader, tiny_model
from tests.resume.job import EPOCH, At, Job, pl

pytestmark = pytest.mark.full


@pytest.fixture
def job(s3_of_module, opt_ml, monkeypatch, request):
    opt_ml.host("algo-1")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(opt_ml.base))
    monkeypatch.setenv("SM_NUM_GPUS", "0")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.chdir(opt_ml.base)
    forget_systems()
    prefix = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    yield S3Job(s3_of_module, prefix, monkeypatch)
    forget_systems()


class S3Job(Job):
    """A job with all that ``trainer_settings`` gives it, and its checkpoints at a URL."""

    def __init__(self, s3, prefix, monkeypatch):
        super().__init__(f"s3://logs/{prefix}")
        self.s3, self.prefix, self.monkeypatch = s3, prefix, monkeypatch

    def make_trainer(self, callbacks, *, options=None, **arguments):
        defaults = {"checkpoint_dir": self.directory, "save_every": "0.01s", "report": False, "log_metrics": False}
        sagemaker = {**defaults, **(options or {})}
        settings = trainer_settings(sagemaker=sagemaker, trainer_class=pl.Trainer, callbacks=callbacks, **arguments)
        return pl.Trainer(**settings)

    def names(self):
        """What is below the prefix."""
        return sorted(name[len(self.prefix) + 1 :] for name in self.s3.names(f"{self.prefix}/"))

    @property
    def saves(self):
        """The names of the files of the first fit's series."""
        return [name.rpartition("/")[2] for name in self.names() if "/fit-0/" in name]

    def path(self, name):
        """The name of a file of the first fit's series, below the prefix."""
        return next(each for each in self.names() if each.endswith(f"/fit-0/{name}"))

    def remove(self, name):
        self.s3.client.delete_object(Bucket="logs", Key=name)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of a fit that is saved on a disk, and not interrupted."""
    return Job(tmp_path_factory.mktemp("elsewhere")).fit().weights


def test_a_restarted_job_goes_on_within_its_epoch_and_one_that_had_ended_does_not(job, expected):
    job.interrupted(EPOCH + 3)
    kept = ["fit.json", "step-10.ckpt", "step-10.json", "step-9.ckpt", "step-9.json"]
    assert job.saves == kept
    job.fit()
    assert job.says("Resuming fit 0 of this program from step-10.ckpt (epoch 1, step 10) in s3://logs/")
    assert (job.steps, job.weights) == (2 * EPOCH - 2, expected)
    metrics = dict(job.trainer.callback_metrics)
    job.fit()
    assert job.steps == 0
    assert job.says("This fit had ended")
    assert job.weights == expected
    assert dict(job.trainer.callback_metrics) == metrics


def test_a_save_that_is_not_whole_is_passed_over(job, expected):
    job.interrupted(EPOCH + 3)
    newest, record = (f"{job.prefix}/{job.path(name)}" for name in ("step-10.ckpt", "step-10.json"))
    save = {name: job.s3[name] for name in (newest, record)}
    flipped = bytearray(save[newest])
    flipped[len(flipped) // 2] ^= 0xFF
    damages = {
        "is corrupted, or of another save": lambda: job.s3.update({newest: bytes(flipped)}),
        " bytes instead of ": lambda: job.s3.update({newest: save[newest][:-100]}),
        "step-10.ckpt is missing": lambda: job.remove(newest),
    }
    for words, damage in damages.items():
        damage()
        job.interrupted(1, options={"save_every": "10m"})
        assert any("Skipped step-10.ckpt in s3://" in line and words in line for line in job.said), words
        assert job.says("Resuming fit 0 of this program from step-9.ckpt")
        # What was skipped is removed when training begins.
        job.s3.update(save)
    job.remove(record)  # the last that is uploaded
    job.fit()
    assert job.says("Resuming fit 0 of this program from step-9.ckpt")
    assert job.weights == expected


def test_the_dirpath_of_a_checkpoint_callback_resumes_without_a_directory_of_sagemakers(job, expected):
    options = {"checkpoint_dir": None}
    best = pl.callbacks.ModelCheckpoint(f"{job.directory}/best", monitor="val_loss", save_top_k=1)
    job.interrupted(EPOCH + 3, options=options, callbacks=[best])
    again = pl.callbacks.ModelCheckpoint(f"{job.directory}/best", monitor="val_loss", save_top_k=1)
    job.fit(options=options, callbacks=[again])
    assert job.says(f"resumed from {job.directory}/best")
    assert (job.steps, job.weights) == (2 * EPOCH - 2, expected)


def test_saves_in_the_background_arrive(job, expected):
    job.interrupted(EPOCH + 3, options={"async_save": True})
    assert len([name for name in job.saves if name.endswith(".json")]) == 3
    job.fit(options={"async_save": True})
    assert job.steps < 2 * EPOCH
    assert job.weights == expected
    assert {"step-24.ckpt", "step-24.json"} <= set(job.saves)


def test_a_save_that_fails_in_the_middle_is_an_error_and_the_older_one_stays(job, expected):
    proxy = FailingProxy(job.s3.port)
    job.monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    forget_systems()

    deny = At("on_train_epoch_start", lambda: setattr(proxy, "status", 403), step=EPOCH)
    try:
        with pytest.raises(CheckpointError, match=r"s3://logs/.*HINT: The job's role needs"):
            job.fit(callbacks=[deny])
    finally:
        proxy.close()
    job.monkeypatch.setenv("AWS_ENDPOINT_URL", job.s3.variables["AWS_ENDPOINT_URL"])
    forget_systems()
    job.fit()
    assert job.says("Resuming fit 0 of this program from step-8")
    assert job.weights == expected


def test_a_ckpt_path_is_downloaded_loaded_and_never_removed(job, expected, tmp_path):
    job.interrupted(EPOCH + 3)
    before, elsewhere = job.names(), {"checkpoint_dir": str(tmp_path / "checkpoints")}
    given = f"{job.directory}/{job.path('step-10.ckpt')}"
    job.monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job.fit(options=elsewhere, ckpt_path=given)
    assert job.says("Downloading step-10.ckpt from s3://")
    assert (job.steps, job.weights) == (2 * EPOCH - 2, expected)
    assert job.names() == before
    (found,) = job.trainer.test(tiny_model(pl), loader(), ckpt_path=given, verbose=False)
    plain = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    assert plain.test(tiny_model(pl), loader(), ckpt_path=given, verbose=False) == [found]
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "opt-ml"]
