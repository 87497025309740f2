"""The metric lines of real fits: what they say, what they change, and the objective of a tuning job."""

import copy
import math
import re
from itertools import chain

import pytest
import torch

from lightning_sm import trainer_settings
from lightning_sm._lightning import installed_namespaces
from lightning_sm._observe.metrics import metric_regex
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import Logged
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()


def monitor(namespace=NAMESPACE, **arguments):
    return callback_class(namespace, "TrainingMonitor")(progress=None, **arguments)


class Model(type(tiny_model(PL))):
    """Logs the loss by step and epoch, and a metric that is never finite."""

    lr = 0.05

    def training_step(self, batch, batch_index):
        loss = self._loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("never", math.nan)
        return loss


def fit(*callbacks, model=None, **arguments):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    given = {"accelerator": "cpu", "max_epochs": 1, "log_every_n_steps": 2, "logger": False, **quiet, **arguments}
    trainer = PL.Trainer(callbacks=list(callbacks), **given)
    with log_lines() as lines:
        trainer.fit(model or Model(), loader(), loader())
    return trainer, lines


def values(name, lines):
    return [float(value) for value in chain.from_iterable(re.findall(metric_regex(name), line) for line in lines)]


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_the_same_lines_with_loggers_and_without(namespace, tmp_path, monkeypatch):
    """One for each hand-over, and the program sees its loggers only, or none."""
    monkeypatch.chdir(tmp_path)
    pl, found, seen = namespace.module(), [], []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            seen.append((trainer.logger is given, pl_module.logger is given, trainer.log_dir))

        on_validation_end = on_train_epoch_end = on_train_batch_end

    for given in (None, pl.loggers.CSVLogger("logs"), [pl.loggers.CSVLogger("logs", name=name) for name in "ab"]):
        more = {"logger": given or False, "default_root_dir": "logs", "enable_checkpointing": False}
        callbacks = [Look(), monitor(namespace)]
        trainer = pl.Trainer(accelerator="cpu", max_epochs=2, log_every_n_steps=2, callbacks=callbacks, **more)
        loggers, log_dir, given = list(trainer.loggers), trainer.log_dir, trainer.logger
        with log_lines() as lines:
            trainer.fit(tiny_model(pl), loader(), loader())
        found.append([line for line in lines if line.startswith("metrics at step ")])
        assert seen.count((True, True, log_dir)) == len(seen) == 21  # with the sanity check
        assert trainer.loggers == loggers
        seen.clear()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4  # an epoch's metrics, and those of its validation


def test_each_hand_over_but_of_the_sanity_check_is_a_line_with_its_own_step_and_epoch():
    class Direct(type(tiny_model(PL))):
        def training_step(self, batch, batch_index):
            for logger in self.loggers:
                logger.log_metrics({"own": float(batch_index)}, step=batch_index + 8 * self.current_epoch)
            return self._loss(batch)

        def validation_step(self, batch, batch_index):
            for logger in self.loggers:
                logger.log_metrics({"direct": 1}, step=0)

    more = {"max_epochs": 2, "log_every_n_steps": 4, "num_sanity_val_steps": 2}
    _, lines = fit(PL.callbacks.LearningRateMonitor(), monitor(), model=Direct(), logger=Logged(), **more)
    assert [line for line in lines if "own=" in line] == [
        f"metrics at step {batch + 8 * epoch}, epoch {epoch}: own={batch}" for epoch in range(2) for batch in range(8)
    ]
    assert set(values("lr-SGD", lines)) == {0.05}
    assert len(values("direct", lines)) == 16


def test_what_is_left_out_is_said_once_and_what_cannot_be_read_ends_nothing():
    class Odd(PL.Callback):
        def on_train_batch_end(self, trainer, *_):
            for logger in trainer.loggers:
                logger.log_metrics({"text": "hello", "vector": torch.zeros(3), "good": 1.5}, step=3)
                logger.log_metrics(metrics={"stepless": torch.tensor(2)})
                logger.log_metrics({"by a tensor": 2}, step=torch.tensor(40))

    _, lines = fit(Odd(), monitor(), logger=Logged())
    (warning,) = (line for line in lines if "Left out" in line)
    assert warning == "Left out of the metric lines, here and from now on: values that are no numbers (text, vector)."
    assert values("good", lines) == [1.5] * 8
    assert 'metrics at step 40, epoch 0: "by a tensor"=2' in lines
    assert "metrics at step 1, epoch 0: stepless=2" in lines

    class Broken(PL.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.loggers[-1].log_metrics(["no mapping"], step=3)

    trainer, lines = fit(Broken(), monitor(), logger=Logged())
    assert trainer.global_step == 8
    assert len([line for line in lines if line.startswith("No more metric lines")]) == 1


def test_validation_and_test_alone(lines):
    trainer = PL.Trainer(accelerator="cpu", logger=False, callbacks=[monitor()], enable_progress_bar=False)
    trainer.validate(tiny_model(PL), loader(), verbose=False)
    trainer.test(tiny_model(PL), loader(), verbose=False)
    assert [len(values(name, lines)) for name in ("val_loss", "val_count", "test_loss")] == [1, 1, 1]


@pytest.mark.parametrize("how", ["callback", "tuner"])
def test_a_search_is_no_training(how, tmp_path, monkeypatch, lines):
    monkeypatch.chdir(tmp_path)
    callbacks = [callback_class(NAMESPACE, "TrainingMonitor")("1h", report="report")]
    if how == "callback":
        callbacks.append(NAMESPACE.module("callbacks").LearningRateFinder(num_training_steps=4))
    arguments = {"enable_checkpointing": False, "enable_model_summary": False, "log_every_n_steps": 1}
    trainer = PL.Trainer(accelerator="cpu", max_epochs=1, logger=False, callbacks=callbacks, **arguments)
    model = Model()
    if how == "tuner":
        NAMESPACE.module("tuner").Tuner(trainer).lr_find(model, loader(), loader(), num_training=4)
    assert lines == []
    trainer.fit(model, loader(), loader())
    # Lightning before 2.5 trains fewer batches after a search by a callback, and validates no more.
    assert values("val_count", lines) == ([28] if "val_count" in trainer.callback_metrics else [])
    assert len(values("loss_step", lines)) == trainer.global_step
    assert sum("Wrote the report" in line for line in lines) == 1
    assert not trainer.progress_bar_callback.is_enabled


def test_a_program_that_goes_through_all_loggers(tmp_path):
    class Own(PL.loggers.CSVLogger):
        def log_image(self, key):
            keys.append(key)

    class Draws(PL.Callback):
        def on_train_epoch_end(self, trainer, *_):
            for logger in [*trainer.loggers, *copy.deepcopy(trainer.loggers)[:1]]:
                logger.log_image("x")
                logger.experiment.log_metrics({})
                directories.extend([logger.log_dir, logger.save_dir])
                assert not hasattr(logger, "log_table")

    keys, directories = [], []
    fit(Draws(), monitor(), logger=Own(tmp_path, name="a"))
    assert keys == ["x", "x"]
    assert len(set(directories)) == 2


def about_the_objective(lines):
    return [line for line in lines if "The objective" in line]


def test_an_objective_that_is_logged_stands_first_and_counts_after_a_restart(tmp_path):
    for begins in ("epoch 0: val_count=28 val_loss=", None):
        forget_fits()
        _, lines = fit(monitor(objective="val_count"), callback_class(NAMESPACE, "AutoResume")(str(tmp_path)))
        assert about_the_objective(lines) == []
        assert any(begins in line for line in lines) if begins else values("val_count", lines) == []


@pytest.mark.parametrize("objective", ["loss", "never"])
def test_an_objective_that_has_no_finite_value(objective):
    (warning,) = about_the_objective(fit(monitor(objective=objective))[1])
    assert warning.startswith(f"The objective '{objective}' of the tuning job was never logged as a finite number, ")
    assert " Logged were: loss_step, never, val_loss, val_count, loss_epoch. HINT: " in warning
    assert about_the_objective(fit(monitor(objective=objective), fast_dev_run=True)[1]) == []


def of_job(callbacks):
    return [callback for callback in callbacks if type(callback).__name__ == "TrainingMonitor"]


@pytest.mark.parametrize("encoded", ['"val_loss"', "val_loss"])
@pytest.mark.usefixtures("one_namespace")
def test_a_job_gets_the_callback_with_its_objective(container, encoded):
    container.raw_hyperparameters(**{"_tuning_objective_metric": encoded})
    for callbacks in (container.cli().trainer.callbacks, trainer_settings()["callbacks"]):
        (found,) = of_job(callbacks)
        assert found.metrics.objective == "val_loss"


@pytest.mark.usefixtures("one_namespace")
def test_a_job_without_lines_a_program_outside_and_a_callback_of_the_users_own(container):
    (found,) = of_job(container.cli("--sagemaker.log_metrics=false", "--sagemaker.report=false").trainer.callbacks)
    assert (found.metrics, found.report) == (None, None)
    own = monitor(objective="mine")
    assert of_job(trainer_settings(callbacks=[own])["callbacks"]) == [own]
    container.leave()
    words = ("--config=config.yaml", "--data.init_args.data_dir=.")
    assert of_job(container.cli(*words).trainer.callbacks) == []
