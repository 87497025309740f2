import pytest

from lightning_sm._lightning import Namespace, SupportLevel, support_level
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings import redirect
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm.callbacks import callback_class, job_callbacks
from lightning_sm.callbacks.job_callbacks import own_callbacks, upload_callbacks
from lightning_sm.errors import CheckpointError
from tests.projects.container import log_lines
from tests.settings.given import context_of

PL = Namespace("pytorch_lightning")
LAPTOP = Topology(Launcher.LOCAL)
ONE_HOST = Topology(Launcher.HOST, main_address="127.0.0.1", main_port=7777)


@pytest.fixture
def job(tmp_path):
    return TrainingJob(
        in_container=True,
        base_dir=str(tmp_path / "ml"),
        checkpoint_dir=str(tmp_path / "ml" / "checkpoints"),
    )


def own(job, present=(), arguments=None, given=None, topology=LAPTOP, **options):
    context = context_of(job, given, SageMakerOptions(**options), topology)
    callbacks = own_callbacks(arguments or {}, list(present), context)
    # With rich installed, Lightning 2.6 is given a summary in plain text.
    return [type(callback).__name__ for callback in callbacks if type(callback).__name__ != "ModelSummary"]


def test_own_callbacks(job):
    callbacks = [
        "AutoResume",
        "FinetuningState",
        "ModelExport",
        "TrainingMonitor",
        "GracefulStop",
    ]
    if support_level(PL) is SupportLevel.CORE:
        callbacks = [name for name in callbacks if name != "TrainingMonitor"]
    assert own(job) == callbacks
    assert own(job, arguments={"enable_checkpointing": None}) == callbacks
    assert own(job, report=False, log_metrics=False) == callbacks
    assert own(job, export=False) == [name for name in callbacks if name != "ModelExport"]
    assert own(job, [callback_class(PL, "ModelExport")()]) == [name for name in callbacks if name != "ModelExport"]
    assert own(job, [callback_class(PL, "AutoResume")("here")]) == callbacks[1:]
    assert own(job, topology=ONE_HOST) == ["WorldCheck", *callbacks]
    without = [name for name in callbacks if name != "FinetuningState"]
    assert own(job, resume="never") == own(job, [callback_class(PL, "FinetuningState")()]) == without


def test_the_level_core_adds_what_it_names(job, monkeypatch):
    for module in (job_callbacks, redirect):
        monkeypatch.setattr(module, "support_level", lambda namespace: SupportLevel.CORE)
    assert own(job, topology=ONE_HOST) == ["WorldCheck", "AutoResume", "FinetuningState", "ModelExport", "GracefulStop"]
    assert upload_callbacks({"here": "s3://there"}, context_of(job)) == []
    logger = PL.module("loggers").TensorBoardLogger("memory://mine")
    assert list(redirect.redirect(logger, "trainer.logger", context_of(job))) == []


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [({"enable_checkpointing": False}, {}, 0), ({"barebones": True}, {"checkpoint_dir": "memory://bucket/x"}, 0),
     ({"fast_dev_run": True}, {}, 1), ({}, {"checkpoint_dir": "memory://bucket/x"}, 1)],
)  # fmt: skip
def test_whether_it_saves_and_resumes(job, arguments, options, expected):
    job_callbacks._say_that_nothing_is_saved.cache_clear()
    with log_lines() as lines:
        for _ in range(2):
            assert own(job, arguments=arguments, **options).count("AutoResume") == expected
    assert sum("with enable_checkpointing=False" in line for line in lines) == 1 - expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"resume": "yes"}, r"sagemaker\.resume is 'yes'.* HINT: Choose one of auto, always, never, require"),
        ({"resume": "yes", "checkpoint_dir": "memory://x"}, r"sagemaker\.resume is 'yes'"),
        ({"checkpoint_dir": "gs://x"}, "gs://x is neither a local directory nor a URL of S3.* HINT: "),
    ],
)
def test_a_resume_that_cannot_be_is_refused(job, options, reason):
    with pytest.raises(CheckpointError, match=reason):
        own(job, **options)
