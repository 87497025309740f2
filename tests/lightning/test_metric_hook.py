"""What observers of a trainer's logged metrics get, with any loggers and without."""

import copy
import logging
import math

import pytest
import torch

from lightning_sm._lightning import NAMESPACES
from lightning_sm._lightning.legacy import connector_of_loggers
from lightning_sm._lightning.metric_hook import observe_logged_metrics
from tests.helpers.tiny import loader, tiny_model

PLS = [namespace for namespace in NAMESPACES if namespace.is_installed]


def recorder(pl, name="calls"):
    """A logger that keeps what it gets."""
    rank_zero_only = getattr(pl.utilities, "rank_zero_only", None) or pl.utilities.rank_zero.rank_zero_only
    base = getattr(pl.loggers, "Logger", None) or pl.loggers.LightningLoggerBase

    class Recorder(base):
        name = version = "x"
        experiment = None

        def __init__(self):
            super().__init__()
            self.calls = []

        @rank_zero_only
        def log_metrics(self, metrics, step=None):
            self.calls.append((dict(metrics), step))

        @rank_zero_only
        def log_hyperparams(self, params, *args, **kwargs):
            self.log_metrics({"hp_metric": -1}, 0)

    return Recorder()


def observing(pl, observed, observer=None):
    class Observing(pl.Callback):
        def setup(self, trainer, pl_module, stage=None):
            self.remove = observe_logged_metrics(
                trainer, observer or (lambda metrics, step: observed.append((dict(metrics), step)))
            )

        def teardown(self, trainer, pl_module, stage=None):
            self.remove()

    return Observing()


def make_trainer(pl, callbacks, logger, **arguments):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    given = {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 2, **quiet, **arguments}
    return pl.Trainer(callbacks=callbacks, logger=logger, **given)


def logging_model(pl, extra=None):
    class LoggingModel(type(tiny_model(pl))):
        def training_step(self, batch, batch_index):
            loss = self._loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log_dict({"train/a": loss.detach() * 2, "train/b": torch.tensor(float("nan"))})
            if extra is not None:
                extra(self, batch_index)
            return loss

    return LoggingModel()


@pytest.fixture(params=PLS, ids=lambda namespace: namespace.name)
def pl(request):
    return request.param.module()


def without_epoch(calls):
    return [({name: value for name, value in metrics.items() if name != "epoch"}, step) for metrics, step in calls]


def same(left, right):
    # NaN equals NaN here.
    return repr(sorted(map(repr, left))) == repr(sorted(map(repr, right)))


@pytest.mark.parametrize("count", [1, 2])
def test_observers_get_what_loggers_get_once(pl, count):
    observed, loggers = [], [recorder(pl) for _ in range(count)]
    trainer = make_trainer(pl, [observing(pl, observed)], loggers if count > 1 else loggers[0])
    trainer.fit(logging_model(pl), loader(), loader())
    handed_over = [(metrics, step) for metrics, step in loggers[0].calls if "hp_metric" not in metrics]
    assert same(without_epoch(observed), without_epoch(handed_over))
    assert all(isinstance(value, (int, float)) for metrics, _ in observed for value in metrics.values())
    assert {"loss_step", "loss_epoch", "train/a", "train/b", "val_loss"} <= {
        name for got, _ in observed for name in got
    }


def test_the_same_without_a_logger(pl):
    with_logger, without = [], []
    trainer = make_trainer(pl, [observing(pl, with_logger)], recorder(pl))
    trainer.fit(logging_model(pl), loader(), loader())
    trainer = make_trainer(pl, [observing(pl, without)], False)
    trainer.fit(logging_model(pl), loader(), loader())
    assert same(with_logger, without)
    assert trainer.logger is None
    assert not any(math.isnan(metrics.get("loss_step", 0)) for metrics, _ in without)


def test_nothing_is_left_behind_and_a_second_fit_is_observed(pl):
    observed, logger = [], recorder(pl)
    trainer = make_trainer(pl, [observing(pl, observed)], logger, max_epochs=1)
    for _ in range(2):
        observed.clear()
        logger.calls.clear()
        trainer.fit(logging_model(pl), loader())
        assert "log_metrics" not in vars(connector_of_loggers(trainer))
        assert not {"log_metrics", "log_hyperparams"} & set(vars(logger))
        trainer.fit_loop.max_epochs += 1
    assert same(without_epoch(observed), without_epoch(call for call in logger.calls if "hp_metric" not in call[0]))
    assert any("loss_epoch" in metrics for metrics, _ in observed)


def test_what_callbacks_and_models_log_directly(pl):
    def extra(model, batch_index):
        if batch_index == 0:
            model.logger.log_metrics({"direct": torch.tensor(1.5), "image": [object()]}, step=7)
            model.logger.log_metrics(metrics={"stepless": 2})

    observed, loggers = [], [recorder(pl), recorder(pl)]
    callbacks = [pl.callbacks.LearningRateMonitor(), observing(pl, observed)]
    trainer = make_trainer(pl, callbacks, loggers, max_epochs=1)
    trainer.fit(logging_model(pl, extra), loader())
    rates = [(metrics, step) for metrics, step in observed if "lr-SGD" in metrics]
    assert rates == [call for call in loggers[0].calls if "lr-SGD" in call[0]]
    assert rates
    (direct,) = ((metrics, step) for metrics, step in observed if "direct" in metrics)
    assert direct[0]["direct"] == 1.5
    assert direct[1] == 7
    assert [step for metrics, step in observed if "stepless" in metrics] == [0]


def test_evaluation_outside_fit(pl):
    observed = []
    trainer = make_trainer(pl, [observing(pl, observed)], False)
    trainer.validate(tiny_model(pl), loader(), verbose=False)
    trainer.test(tiny_model(pl), loader(), verbose=False)
    assert [set(metrics) for metrics, _ in observed] == [{"val_loss", "val_count"}, {"test_loss"}]


def test_sanity_checking_is_not_observed(pl):
    observed, checked = [], []

    class Direct(type(tiny_model(pl))):
        def validation_step(self, batch, batch_index):
            super().validation_step(batch, batch_index)
            checked.append(self.trainer.sanity_checking)
            self.logger.log_metrics({"direct": 1}, step=0)

    trainer = make_trainer(pl, [observing(pl, observed)], recorder(pl), num_sanity_val_steps=2)
    trainer.fit(Direct(), loader(), loader())
    assert sum(checked) == 2
    assert sum("direct" in metrics for metrics, _ in observed) == len(checked) - 2


def test_a_step_that_is_logged_is_the_step(pl):
    observed = []
    trainer = make_trainer(pl, [observing(pl, observed)], False, max_epochs=1)
    model = logging_model(pl, lambda model, index: model.log("step", 100.0 + index))
    trainer.fit(model, loader())
    assert observed[0][1] == 101
    assert not any("step" in metrics for metrics, _ in observed)


def test_an_observer_that_fails_ends_nothing_and_is_reported_once(pl, caplog):
    def fail(metrics, step):
        raise ZeroDivisionError("here")

    observed = []
    trainer = make_trainer(pl, [observing(pl, None, fail), observing(pl, observed)], False)
    logger = logging.getLogger("lightning_sm")
    logger.addHandler(caplog.handler)
    try:
        trainer.fit(logging_model(pl), loader())
    finally:
        logger.removeHandler(caplog.handler)
    assert trainer.global_step == 16
    assert len(observed) > 2
    lines = {record.getMessage() for record in caplog.records if "ZeroDivisionError" in record.getMessage()}
    assert lines == {"Logged metrics could not be recorded: ZeroDivisionError: here"}


def test_a_logger_can_still_be_copied_while_it_is_observed(pl):
    logger, calls = recorder(pl), []
    trainer = make_trainer(pl, [], logger)
    remove = observe_logged_metrics(trainer, lambda metrics, step: calls.append(metrics))
    copied = copy.deepcopy(logger)
    copied.log_metrics({"a": 1}, 0)
    assert (copied.calls, logger.calls, calls) == ([({"a": 1}, 0)], [], [])
    logger.log_metrics({"b": 1}, 0)
    assert calls == [{"b": 1}]
    remove()
    remove()
    logger.log_metrics({"c": 1}, 0)
    assert calls == [{"b": 1}]


def test_the_learning_rate_finder_is_not_observed(pl):
    tuning = pytest.importorskip(f"{pl.__name__}.tuner.tuning")
    if not hasattr(pl.callbacks, "LearningRateFinder"):
        pytest.skip("a callback since Lightning 1.8")
    assert tuning

    class Finder(pl.callbacks.LearningRateFinder):
        def lr_find(self, trainer, pl_module):
            super().lr_find(trainer, pl_module)
            steps.append(len(observed))

    class Model(type(logging_model(pl))):
        lr = 0.1

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    observed, steps = [], []
    callbacks = [observing(pl, observed), Finder(num_training_steps=6, update_attr=False)]
    trainer = make_trainer(pl, callbacks, False, max_epochs=1)
    trainer.fit(Model(), loader())
    assert steps == [0]
    assert observed


def test_fast_dev_run_is_observed(pl):
    observed = []
    trainer = make_trainer(pl, [observing(pl, observed)], True, fast_dev_run=True)
    trainer.fit(logging_model(pl), loader(), loader())
    assert {"loss_step", "loss_epoch", "val_loss"} <= {name for metrics, _ in observed for name in metrics}
