"""Progress lines for whatever a user trains: few, whole, true, and never the end of the training."""

import contextlib
import logging
import re
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_sm._lightning import Namespace, installed_namespaces
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import OptionError
from tests.helpers.tiny import loader, tiny_model
from tests.observe.form import progress_lines
from tests.projects.container import log_lines

NAMESPACES = pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
PL = Namespace("pytorch_lightning")
ALWAYS = "1us"


def net(pl):
    """A model that logs for the bar."""

    class Net(type(tiny_model(pl))):
        def training_step(self, batch, batch_index):
            loss = super().training_step(batch, batch_index)
            self.log("loss", loss, prog_bar=True)
            return loss

    return Net


def run(namespace, model=None, data=None, val=None, every=3600, callbacks=(), fit=None, **arguments):
    """Fit, and return the trainer, the callback, what the lines say, and the lines."""
    pl = namespace.module()
    monitor = callback_class(namespace, "TrainingMonitor")(every, metrics=False)
    given = {"max_epochs": 1, "num_sanity_val_steps": 0, **arguments}
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[monitor, *callbacks],
        **given,
    )
    intervals = 1e12 if every == ALWAYS else 5  # else each batch would look like a hang
    with log_lines() as lines, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_sm._observe.progress._STALL_INTERVALS", intervals)
        if fit is None:
            trainer.fit(model or net(pl)(), loader() if data is None else data, val)
        else:
            fit(trainer)
    assert not any("No more progress lines" in line for line in lines), lines
    assert "lightning-sm-stalls" not in [thread.name for thread in threading.enumerate()]
    return trainer, monitor.progress, progress_lines(lines), lines


def stages(found):
    return [stage for stage, _, _ in found]


@NAMESPACES
def test_the_ends_of_all_stages(namespace):
    trainer, _, found, _ = run(namespace, val=loader(samples=6), max_epochs=2, num_sanity_val_steps=2)
    assert stages(found) == [
        "sanity check end", "validation end", "train end", "validation end", "train end", "fit end"
    ]  # fmt: skip
    words = [words for _, words, _ in found]
    assert (words[1]["epoch"], words[1]["batch"], words[1]["samples"]) == ("0/1", "3/3", "6")
    assert (words[2]["epoch"], words[2]["batch"], words[2]["step"], words[2]["samples"]) == ("0/1", "8/8", "8", "16")
    assert (words[4]["epoch"], words[4]["step"]) == ("1/1", "16")
    assert (words[5]["batch"], words[5]["step"], words[5]["samples"]) == ("16", "16", "32")
    assert "time" in words[5]
    metrics = [metrics for _, _, metrics in found]
    assert re.fullmatch(r"val_loss=[\d.e-]+, val_count=[\d.]+", metrics[1])
    assert re.fullmatch(r"loss=[\d.e-]+", metrics[2])
    assert not trainer.progress_bar_callback.is_enabled


class Endless(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for number in range(self.length):
            yield torch.full((4,), float(number % 3)), torch.zeros(1)


class Net(net(PL.module())):
    """Takes the first batch of several, and leaves out the rest of an epoch where it is told to."""

    skips_at = None

    def _loss(self, batch):
        return super()._loss(batch if torch.is_tensor(batch[0]) else batch[0])

    def on_train_batch_start(self, batch, batch_index, *_):
        return -1 if batch_index == self.skips_at else None


def combined(mode):
    return PL.module("utilities").CombinedLoader([loader(), loader(samples=6)], mode)


def setup(stage=None, words=None, data=None, val=None, skips_at=None, **arguments):
    """A set-up, and the words that some line of a stage must have."""
    return stage, words, data, val, skips_at, arguments


def endless(length=10**9):
    return DataLoader(Endless(length), batch_size=2)


SETUPS = {
    "max_steps without epochs": setup("train", {"epoch": "1", "step": "12"}, max_epochs=-1, max_steps=12),
    "endless data": setup(
        "train", {"batch": "5", "step": "5", "eta_fit": "0:00:00"}, data=endless(), max_epochs=-1, max_steps=5
    ),
    "iterable data": setup("train end", {"batch": "3", "samples": "6"}, data=endless(6)),
    "max_time": setup("train", {"eta_fit": "0:00:01"}, data=endless(), max_epochs=-1, max_time={"seconds": 1}),
    "limit_train_batches": setup("train end", {"batch": "3/3", "samples": "6"}, limit_train_batches=3),
    "a share of the batches": setup("train end", {"batch": "4/4"}, limit_train_batches=0.5),
    "accumulation": setup("train end", {"batch": "8/8", "step": "2"}, accumulate_grad_batches=4),
    "validation every 3 batches": setup("validation end", {"batch": "8/8"}, val=loader(), val_check_interval=3),
    "validation twice": setup("validation end", {"epoch": "0/0"}, val=loader(), val_check_interval=0.5),
    "validation in some epochs": setup(
        "validation end", {"epoch": "1/1"}, val=loader(), check_val_every_n_epoch=2, max_epochs=2
    ),
    "validation of a batch of each": setup("validation end", {"batch": "8/8"}, val=combined("max_size")),
    "as long as each has one": setup("validation end", {"batch": "3/3"}, val=combined("min_size")),
    "limit_val_batches": setup("validation end", {"batch": "2/2"}, val=loader(), limit_val_batches=2),
    "none of the validation": setup("train end", {"batch": "8/8"}, val=loader(), limit_val_batches=0),
    "the rest of an epoch left out": setup("train end", {"batch": "3/8", "samples": "6"}, skips_at=3),
    "fast_dev_run": setup("train end", {"batch": "1/1", "epoch": "0/0"}, val=loader(), fast_dev_run=True),
    "overfit_batches": setup("train end", {"batch": "2/2"}, overfit_batches=2),
    "no batches": setup(limit_train_batches=0),
    "a smaller last batch": setup("train end", {"samples": "7", "batch": "2/2"}, data=loader(7, batch_size=4)),
    "several loaders": setup("train end", {"batch": "8/8", "samples": "16"}, data=[loader(), loader(batch_size=4)]),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup(name):
    stage, words, data, val, skips_at, arguments = SETUPS[name]
    model = Net()
    model.skips_at = skips_at
    trainer, progress, found, lines = run(PL, model, data, val, every=ALWAYS, **arguments)
    if stage is None:
        assert found == []
        return
    assert any(stage == each and words.items() <= has.items() for each, has, _ in found), lines
    assert stages(found)[-1] == "fit end"
    assert found[-1][1]["step"] == str(trainer.global_step)
    # What validates within fit does not count as training.
    assert progress.training.total.batches == int(found[-1][1]["batch"])


@NAMESPACES
def test_validate_test_and_predict_of_one_trainer(namespace):
    class Net(net(namespace.module())):
        def validation_step(self, batch, batch_index, dataloader_idx=0):
            super().validation_step(batch, batch_index)

        def predict_step(self, batch, batch_index, dataloader_idx=0):
            return self.layers(batch[0])

    def each(trainer):
        model = Net()
        trainer.validate(model, [loader(samples=4), loader(samples=6)], verbose=False)
        trainer.fit(model, loader())
        trainer.test(model, loader(samples=10), verbose=False)
        trainer.predict(model, loader(samples=4, batch_size=4))
        trainer.validate(model, loader(samples=5), verbose=False)

    _, _, found, _ = run(namespace, fit=each)
    assert stages(found) == [
        "validation end", "train end", "fit end", "test end", "predict end", "validation end"
    ]  # fmt: skip
    words = [words for _, words, _ in found]
    assert [word.get("samples") for word in words] == ["10", "16", "16", "10", "4", "5"]
    assert words[0]["batch"] == "5/5"
    assert "epoch" not in words[0]
    assert "test_loss" in found[3][2]
    assert "val_loss" not in found[3][2]


def test_a_program_that_validates_by_itself_and_has_metrics_and_callbacks_of_its_own():
    class Own(net(PL.module())):
        def on_train_start(self):
            self.trainer.fit_loop.epoch_loop.val_loop.run()

        def on_validation_epoch_end(self):
            self.trainer.callback_metrics["confusion"] = torch.eye(2)

    class Timer(PL.module().Callback):
        """None of Lightning's."""

    _, _, found, _ = run(PL, Own(), val=loader(), callbacks=[Timer()])
    assert stages(found) == ["validation end", "train end", "fit end"]
    assert found[0][2].endswith("confusion=tensor([[1., 0.], [0., 1.]])")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_within_an_epoch(error):
    class Broken(net(PL.module())):
        def training_step(self, batch, batch_index):
            if batch_index == 3:
                raise error("broken")
            return super().training_step(batch, batch_index)

    def fails(trainer):
        with contextlib.suppress(BaseException):
            trainer.fit(Broken(), loader())

    _, _, found, _ = run(PL, fit=fails)
    assert stages(found) == ["fit interrupted"]
    assert (found[0][1]["batch"], found[0][1]["reason"]) == ("3", error.__name__)


@NAMESPACES
def test_a_bar_of_the_model_wins(namespace):
    pl = namespace.module()

    class Own(pl.callbacks.ProgressBar):
        disable = enable = lambda self: None

    class Net(net(pl)):
        def configure_callbacks(self):
            return [Own()]

    _, _, found, lines = run(namespace, Net(), every=ALWAYS)
    assert found == []
    assert lines == []


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    def full(record):
        raise OSError("disk full")

    monkeypatch.setattr(logging.getLogger("lightning_sm"), "handle", full)
    trainer, _, found, _ = run(PL)
    assert (found, trainer.global_step) == ([], 8)


class Sleeping(Dataset):
    """Data of which one item takes long."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(1.4 if index == 3 else 0)
        return torch.zeros(4), torch.zeros(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_a_step_and_a_validation_that_hang(workers):
    class Net(net(PL.module())):
        def training_step(self, batch, batch_index):
            time.sleep(0.8 if batch_index == 4 else 0)
            return super().training_step(batch, batch_index)

        def validation_step(self, batch, batch_index):
            time.sleep(0.8 if batch_index == 1 else 0)

    data = DataLoader(Sleeping(), num_workers=workers)
    _, _, _, lines = run(PL, Net(), data, loader(samples=4), every=0.1)
    for place in (
        r"train hang: no batch for seconds=\d+ epoch=0 batch=3 rank=0 of 1, waiting for data, in ",
        r"train hang: .* epoch=0 batch=4 rank=0 of 1, in the training step, in training_step \(",
        r"validation hang: .* batch=1 rank=0 of 1, in the validation step, in validation_step \(",
    ):
        assert 1 <= sum(re.search(place, line) is not None for line in lines) <= 2, lines  # the second after 1.5 s
    assert any("goes on" in line for line in lines)


@pytest.mark.skipif(PL.version < (2, 5), reason="older versions go on with the next epoch")
def test_a_run_that_is_resumed_within_an_epoch(tmp_path):
    class Stop(PL.module().Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 3:
                raise KeyError("interrupted")

    def resume():
        forget_fits()
        return callback_class(PL, "AutoResume")(str(tmp_path), save_every=0.01)

    with pytest.raises(KeyError):
        run(PL, callbacks=[Stop(), resume()])
    _, _, found, _ = run(PL, every=ALWAYS, callbacks=[resume()])
    train = [words for stage, words, _ in found if stage == "train"]
    assert [(words["batch"], words["percent"], words["step"]) for words in train][:2] == [
        ("4/8", "50", "4"),
        ("5/8", "62", "5"),
    ]
    ends = {stage: words for stage, words, _ in found}
    assert (ends["train end"]["batch"], ends["train end"]["samples"]) == ("8/8", "10")
    assert (ends["fit end"]["batch"], ends["fit end"]["step"]) == ("5", "8")


@pytest.mark.parametrize("every", ["soon", "", 0, "-3s"])
def test_an_interval_that_is_none(every):
    with pytest.raises(OptionError, match=r"sagemaker\.log_every: .* is not a duration.* HINT: Write"):
        callback_class(PL, "TrainingMonitor")(every)
