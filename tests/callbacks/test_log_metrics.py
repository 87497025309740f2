"""The metric lines of real fits, and the objective of a tuning job."""

import logging
import re
from contextlib import nullcontext
from itertools import chain

import pytest
import torch

from lightning_sm import trainer_settings
from lightning_sm._lightning import NAMESPACES
from lightning_sm._metrics.lines import metric_regex
from lightning_sm.callbacks import callback_class
from tests.helpers.tiny import loader, tiny_model
from tests.lightning.test_metric_hook import recorder
from tests.projects.container import log_lines

NAMESPACE_LIST = [namespace for namespace in NAMESPACES if namespace.is_installed]


@pytest.fixture(params=NAMESPACE_LIST, ids=lambda namespace: namespace.name)
def namespace(request):
    return request.param


def model(pl, names=(), value=lambda index: 0.5):
    class Model(type(tiny_model(pl))):
        def training_step(self, batch, batch_index):
            loss = self._loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            for name in names:
                self.log(name, value(batch_index))
            return loss

    return Model()


def fit(namespace, *callbacks, names=(), value=lambda index: 0.5, validate=True, **arguments):
    pl = namespace.module()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    given = {"accelerator": "cpu", "max_epochs": 1, "log_every_n_steps": 2, "logger": False, **quiet, **arguments}
    trainer = pl.Trainer(callbacks=list(callbacks), **given)
    with log_lines() as lines:
        trainer.fit(model(pl, names, value), loader(), *([loader()] if validate else []))
    return trainer, lines


def log_metrics(namespace, **arguments):
    return callback_class(namespace, "LogMetrics")(**arguments)


def values(name, lines):
    return [float(value) for value in chain.from_iterable(re.findall(metric_regex(name), line) for line in lines)]


def test_each_scalar_comes_back(namespace):
    trainer, lines = fit(namespace, log_metrics(namespace), names=["a b", "train/x", "nan"], max_epochs=2)
    lines = [line for line in lines if line.startswith("metrics at step ")]
    assert lines[0].startswith("metrics at step ")
    assert ", epoch 0: loss_step=" in lines[0]
    assert len(values("loss_step", lines)) == 8
    assert len(values("loss_epoch", lines)) == len(values("val_loss", lines)) == 2
    assert values("a b", lines) == values("train/x", lines) == [0.5] * 8
    assert values("loss", lines) == []
    assert values("val_loss", lines)[-1] == pytest.approx(float(trainer.callback_metrics["val_loss"]))
    assert trainer.logger is None


def test_without_validation_and_of_two_callbacks_of_it_each_writes(namespace):
    _, lines = fit(namespace, log_metrics(namespace), validate=False)
    assert len(values("loss_step", lines)) == 4
    assert values("val_loss", lines) == []


def test_rates_and_what_the_model_hands_to_its_logger(namespace, tmp_path):
    pl = namespace.module()
    loggers = [pl.loggers.CSVLogger(str(tmp_path), name=name) for name in "ab"]
    _, lines = fit(namespace, pl.callbacks.LearningRateMonitor(), log_metrics(namespace), logger=loggers)
    assert set(values("lr-SGD", lines)) == {0.05}
    steps = [line.partition(":")[0] for line in lines if "loss_step=" in line or "lr-SGD=" in line]
    assert len(values("loss_step", lines)) == 4
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize("fails", [False, True])
def test_what_no_metrics_of_the_step_follow_is_written_too(namespace, tmp_path, fails):
    """Each with its own step and epoch; the last ones at the end, or with the exception."""
    pl = namespace.module()

    class Direct(type(tiny_model(pl))):
        def training_step(self, batch, batch_index):
            self.logger.log_metrics({"own": float(batch_index)}, step=batch_index + 8 * self.current_epoch)
            self.logger.log_metrics({"own": 100.0}, step=batch_index + 8 * self.current_epoch)
            if fails and (self.current_epoch, batch_index) == (1, 7):
                raise ValueError("made up")
            return self._loss(batch)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, log_every_n_steps=4, callbacks=[log_metrics(namespace)],
                         logger=pl.loggers.CSVLogger(str(tmp_path)), **quiet)  # fmt: skip
    with log_lines() as lines, pytest.raises(ValueError, match="made up") if fails else nullcontext():
        trainer.fit(Direct(), loader())
    found = [line for line in lines if line.startswith("metrics at step ")]
    assert found == [
        f"metrics at step {batch + 8 * epoch}, epoch {epoch}: own={value}"
        for epoch in range(2) for batch in range(8) for value in (batch, 100)
    ]  # fmt: skip


def test_nan_and_infinity_are_shown_and_not_found(namespace):
    numbers = [float("nan"), float("inf"), float("-inf"), 1e-30]
    _, lines = fit(namespace, log_metrics(namespace), names=["x"], value=lambda i: numbers[i % 4], log_every_n_steps=1)
    shown = [line.partition(" x=")[2] for line in lines if " x=" in line]
    assert shown == ["nan", "inf", "-inf", "1e-30"] * 2
    assert values("x", lines) == [1e-30] * 2


def test_other_ranks_write_nothing(namespace, monkeypatch):
    pl = namespace.module()
    monkeypatch.setattr(pl.Trainer, "is_global_zero", property(lambda self: False))
    _, lines = fit(namespace, log_metrics(namespace, objective="missing"))
    assert not any("metrics at" in line or "objective" in line for line in lines)


def test_what_is_left_out_is_said_once(namespace):
    pl = namespace.module()

    class Odd(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args, **kwargs):
            pl_module.logger.log_metrics({"text": "hello", "vector": torch.zeros(3), "good": 1.5}, step=3)

    _, lines = fit(namespace, Odd(), log_metrics(namespace), logger=recorder(pl))
    (warning,) = (line for line in lines if "Left out" in line)
    assert warning == ("Left out of the metric lines, here and from now on: values that are no numbers (text, vector).")
    assert values("good", lines) == [1.5] * 8


def objective_lines(namespace, objective, **arguments):
    _, lines = fit(namespace, log_metrics(namespace, objective=objective), **arguments)
    return [line for line in lines if "The objective" in line], lines


def test_an_objective_that_is_logged_stands_first(namespace):
    warnings, lines = objective_lines(namespace, "val_count")
    assert warnings == []
    assert any("epoch 0: val_count=28 val_loss=" in line for line in lines)


def test_an_objective_that_is_not_logged(namespace):
    (warning,), _ = objective_lines(namespace, "loss")
    assert warning.startswith("The objective 'loss' of the tuning job was not logged. Logged were: loss_step, ")
    logged = warning.partition("Logged were: ")[2].partition(". HINT: ")[0]
    assert set(logged.split(", ")) == {"loss_step", "loss_epoch", "val_loss", "val_count"}


def test_an_objective_that_is_never_finite(namespace):
    (warning,), _ = objective_lines(namespace, "x", names=["x"], value=lambda _: float("nan"))
    assert warning.startswith("The objective 'x' of the tuning job was logged, but never as a finite number")


def test_names_that_are_new_each_time_do_not_fill_the_memory(namespace):
    callback = log_metrics(namespace, objective="late")
    with log_lines():
        for step in range(3000):
            callback._write({f"loss_{step}": 0.5}, step, 0)
        callback._write({"late": 0.5}, 3000, 0)
    assert len(callback._seen) <= 1001
    assert callback._seen["late"]


def test_an_objective_of_a_run_that_is_no_training(namespace):
    assert objective_lines(namespace, "missing", fast_dev_run=True)[0] == []


@pytest.mark.parametrize("encoded", ['"val_loss"', "val_loss"])
@pytest.mark.usefixtures("one_namespace")
def test_a_job_gets_the_callback_with_its_objective(container, encoded):
    container.raw_hyperparameters(**{"_tuning_objective_metric": encoded})
    assert [callback.objective for callback in _of_job(container.cli().trainer)] == ["val_loss"]
    assert [callback.objective for callback in _of_job_settings()] == ["val_loss"]


@pytest.mark.usefixtures("one_namespace")
def test_a_job_without_an_objective_or_without_lines(container):
    assert [callback.objective for callback in _of_job(container.cli().trainer)] == [None]
    assert _of_job(container.cli("--sagemaker.log_metrics=false").trainer) == []
    assert _of_job_settings(sagemaker={"log_metrics": False}) == []
    container.leave()
    assert _of_job(container.cli("--config=config.yaml", "--data.init_args.data_dir=.").trainer) == []


def _of_job(trainer):
    return [callback for callback in trainer.callbacks if type(callback).__name__ == "LogMetrics"]


def _of_job_settings(**arguments):
    settings = trainer_settings(**arguments)
    return [callback for callback in settings["callbacks"] if type(callback).__name__ == "LogMetrics"]


@pytest.mark.usefixtures("one_namespace")
def test_one_of_the_users_own_is_not_doubled(container):
    own = callback_class(NAMESPACE_LIST[-1], "LogMetrics")(objective="mine")
    (found,) = _of_job_settings(callbacks=[own])
    assert found is own


@pytest.mark.slow
def test_a_whole_job_of_the_cli_writes_lines(container):
    done = container.run("-m", "lightning_sm.cli")
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if line.startswith("metrics at step ")], lines


def test_lines_are_of_our_logger(namespace, caplog):
    logging.getLogger("lightning_sm").addHandler(caplog.handler)
    try:
        fit(namespace, log_metrics(namespace))
    finally:
        logging.getLogger("lightning_sm").removeHandler(caplog.handler)
    assert {record.levelname for record in caplog.records if "metrics at" in record.getMessage()} == {"INFO"}
