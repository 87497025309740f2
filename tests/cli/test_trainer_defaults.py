import os
import re

import pytest

from lightning_sm import SageMakerEnvironment
from lightning_sm._distributed.smddp import smddp_strategy_class
from lightning_sm._lightning import Namespace, SupportLevel, support_level
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings import redirect
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm._settings.redirect import as_list
from lightning_sm._trainer_defaults import add_environment
from lightning_sm.callbacks import callback_class, job_callbacks
from lightning_sm.callbacks.job_callbacks import own_callbacks, upload_callbacks
from lightning_sm.errors import CheckpointError
from tests.helpers.failure_file import reason as reason_of
from tests.settings.given import context_of, given_of

PL = Namespace("pytorch_lightning")
LAPTOP = Topology(Launcher.LOCAL)
ONE_HOST = Topology(Launcher.HOST, main_address="127.0.0.1", main_port=7777)
HOST = context_of(topology=ONE_HOST)


@pytest.mark.parametrize("given", [None, [], "an object"])
def test_an_environment_joins_the_plugins(given):
    arguments = {"plugins": given, "strategy": "ddp"}
    add_environment(arguments, HOST)
    *before, environment = arguments["plugins"]
    assert before == as_list(given)
    assert environment.topology is ONE_HOST


@pytest.mark.parametrize("strategy", ["smddp", "smddp_find_unused_parameters_true", "object"])
def test_smddp_brings_its_own(strategy):
    arguments = {"strategy": smddp_strategy_class(PL)() if strategy == "object" else strategy}
    add_environment(arguments, HOST)
    assert "plugins" not in arguments


def test_no_environment_on_a_laptop_or_beside_another():
    arguments = {}
    add_environment(arguments, context_of())
    assert arguments == {}
    given = [PL.module("plugins.environments").LightningEnvironment()]
    arguments = {"plugins": given}
    add_environment(arguments, HOST)
    assert arguments["plugins"] == given
    arguments = {"plugins": SageMakerEnvironment(ONE_HOST)}
    add_environment(arguments, HOST)
    assert isinstance(arguments["plugins"], SageMakerEnvironment)


@pytest.fixture
def job(tmp_path):
    return TrainingJob(
        in_container=True,
        base_dir=str(tmp_path / "ml"),
        checkpoint_dir=str(tmp_path / "ml" / "checkpoints"),
        failure_file=str(tmp_path / "ml" / "output" / "failure"),
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


@pytest.mark.skipif(support_level(PL) is SupportLevel.CORE, reason="a job adds TrainingMonitor from the level epoch on")
def test_few_hooks_are_called_for_each_step(job):
    names = ("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
             "on_before_optimizer_step", "on_train_batch_end")  # fmt: skip
    callbacks = own_callbacks({}, [], context_of(job, None, SageMakerOptions(), LAPTOP))
    ours = [callback for callback in callbacks if type(callback).__module__ == "lightning_sm"]
    called = [(type(each).__name__, name) for each in ours for name in names if callable(getattr(each, name))]
    assert ("TrainingMonitor", "on_train_batch_end") in called
    assert not [name for name, _ in called if name == "AutoResume"]
    assert len(called) <= 8


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [({"enable_checkpointing": False}, {}, 0), ({"barebones": True}, {"checkpoint_dir": "memory://bucket/x"}, 0),
     ({"fast_dev_run": True}, {}, 1), ({}, {"checkpoint_dir": "memory://bucket/x"}, 1)],
)  # fmt: skip
def test_whether_it_saves_and_resumes(job, arguments, options, expected):
    assert own(job, arguments=arguments, **options).count("AutoResume") == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"resume": "yes"}, r"sagemaker\.resume is 'yes'.* HINT: Choose one of auto, always, never, require"),
        ({"resume": "yes", "checkpoint_dir": "memory://x"}, r"sagemaker\.resume is 'yes'"),
        ({"checkpoint_dir": "gs://x"}, "gs://x is neither a local directory nor a URL of S3.* HINT: "),
    ],
)
def test_a_resume_that_cannot_be_is_a_reason(job, options, reason):
    with pytest.raises(CheckpointError, match=reason):
        own(job, **options)
    assert re.match(rf"CheckpointError: .*{reason}", reason_of(job))


def test_outside_a_container(tmp_path):
    checkpoint = PL.module("callbacks").ModelCheckpoint(dirpath=str(tmp_path))
    assert own(TrainingJob(), [checkpoint]) == []
    assert own(TrainingJob(), [checkpoint], model_dir="there") == ["ModelExport"]
    assert own(TrainingJob(), [checkpoint], model_dir="there", export=False) == []
    assert checkpoint.dirpath == str(tmp_path)


def test_explicit_directories_stay(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint_class = PL.module("callbacks").ModelCheckpoint
    first, second, third = (checkpoint_class(dirpath=path) for path in ("one", "two", "three"))
    given = given_of(trainer={"callbacks": [{"init_args": {"dirpath": "one"}}]}, my_save={"dirpath": "two"})
    own(job, [first, second, third], given=given)
    kept = [os.path.realpath(callback.dirpath) for callback in (first, second)]
    assert kept == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert third.dirpath == os.path.join(job.checkpoint_dir, "three")
