"""Where a restart continues with this Lightning: within an epoch from 2.5 on, before that at the start of an epoch."""

import os
import signal

import pytest
import torch

from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.series import outcome, saves_of, train_fit, train_keeping_all
from tests.helpers.setups import Size
from tests.helpers.skips import installed_version
from tests.resume.test_setups import differences

VERSION = installed_version("pytorch-lightning")
FULL = VERSION >= (2, 5)
SIZE = Size(epochs=3, batches=6)


class Trace(pl.Callback):
    """Notes with which epoch, step and weights each batch begins, and which hooks of the fit's ends are called."""

    def __init__(self, at=None, act=None):
        self.batches, self.hooks = [], []
        self.at, self.act = at, act
        for hook in ("on_train_start", "on_train_end", "on_fit_end"):
            setattr(self, hook, lambda *_, hook=hook: self.hooks.append(hook))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, *_):
        weights = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()]).tolist()
        self.batches.append((trainer.current_epoch, batch_idx, trainer.global_step, weights))
        if len(self.batches) == self.at:
            self.act()

    def state_dict(self):
        return {}  # what it has seen is this process's own


class Killed(Exception):
    """What ends a process of these tests."""


def _kill():
    raise Killed


def test_saves_have_their_true_epochs_and_steps(tmp_path):
    train_keeping_all("validation_within_epochs", SIZE, tmp_path)
    saves = [(record["kind"], record["epoch"], record["step"]) for record in saves_of(tmp_path)]
    at_epochs = [("epoch", 1, 6), ("epoch", 2, 12), ("end", 3, 18)]
    assert [save for save in saves if save[0] in ("epoch", "end")] == at_epochs
    within = {("validation", 0, 3), ("batch", 0, 4), ("validation", 0, 6), ("batch", 2, 17)}
    assert within.issubset(saves) if FULL else saves == at_epochs


def test_a_killed_fit_continues_with_its_epoch_and_says_where(lines, tmp_path):
    whole, killed, resumed = Trace(), Trace(at=10, act=_kill), Trace()
    train_fit("noisy_data", SIZE, tmp_path / "whole", callbacks=[whole])
    with pytest.raises(Killed):
        train_fit("noisy_data", SIZE, tmp_path / "jobs", callbacks=[killed])
    assert killed.batches == whole.batches[:10]
    train_fit("noisy_data", SIZE, tmp_path / "jobs", callbacks=[resumed], resumed=True)
    assert resumed.batches == whole.batches[9 if FULL else 6 :]
    version = ".".join(map(str, NAMESPACE.version))
    within = "Resuming within an epoch: epoch 1 after 3 batches."
    again = f"This Lightning ({version}) continues at the start of an epoch: epoch 1 begins again."
    assert [line for line in lines if line in (within, again)] == [within if FULL else again]


@pytest.mark.skipif(VERSION < (2, 1), reason="the level core restores no samplers")
def test_an_epoch_begins_with_what_samplers_and_optimizers_had_become(tmp_path):
    def at_starts(saves):
        return [save for save in saves if save["kind"] == "epoch"]

    for name in ("changed_weights", "changed_optimizers"):
        assert differences(name, tmp_path / name, at_starts) == {}


def test_an_ended_fit_ends_again_without_training(tmp_path):
    first, second = Trace(), Trace()
    exports = [callback_class(NAMESPACE, "ModelExport")(str(tmp_path / name)) for name in ("model", "model again")]
    trained = outcome(train_fit("epoch_mean", SIZE, tmp_path / "jobs", callbacks=[first, exports[0]]))
    again = outcome(train_fit("epoch_mean", SIZE, tmp_path / "jobs", callbacks=[second, exports[1]], resumed=True))
    assert trained == again
    assert len(first.batches) == 18
    assert second.batches == []
    assert first.hooks == second.hooks == ["on_train_start", "on_train_end", "on_fit_end"]
    files = [torch.load(str(tmp_path / name / "model.pt")) for name in ("model", "model again")]
    assert files[0].keys() == files[1].keys() == trained["weights"].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])


def test_an_ended_fit_with_more_epochs_to_train_goes_on(tmp_path):
    whole, longer = Trace(), Trace()
    expected = outcome(train_fit("schedule_by_epoch", SIZE, tmp_path / "whole", callbacks=[whole]))
    train_fit("schedule_by_epoch", SIZE, tmp_path / "jobs", max_epochs=2)
    trainer = train_fit("schedule_by_epoch", SIZE, tmp_path / "jobs", callbacks=[longer], resumed=True)
    assert longer.batches == whole.batches[12:]
    assert outcome(trainer) == expected


@pytest.mark.parametrize("epochs", [1, 3])
def test_saves_of_other_jobs_are_refused(epochs, tmp_path, opt_ml, in_environ):
    in_environ(opt_ml.host("algo-1").environ(TRAINING_JOB_NAME="one-job"))
    train_fit("plain", SIZE, tmp_path, max_epochs=epochs)
    in_environ({"TRAINING_JOB_NAME": "other-job"})
    trace = Trace()
    with pytest.raises(CheckpointError, match="one-job"):
        train_fit("plain", SIZE, tmp_path, callbacks=[trace])
    assert trace.batches == []


def test_sigterm_ends_a_fit_after_the_step_and_a_restart_ends_as_the_whole_fit(tmp_path):
    expected = outcome(train_fit("plain", SIZE, tmp_path / "whole"))
    stop = callback_class(NAMESPACE, "GracefulStop")
    stopped = Trace(at=10, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    with pytest.raises(SystemExit) as exited:
        train_fit("plain", SIZE, tmp_path / "jobs", callbacks=[stopped, stop(), export])
    assert exited.value.code == 143
    assert stopped.batches[-1][:3] == (1, 3, 9)  # epoch, batch and step
    assert (tmp_path / "model" / "model.pt").exists()
    assert saves_of(tmp_path / "jobs")[-1]["step"] == (10 if FULL else 6)
    assert outcome(train_fit("plain", SIZE, tmp_path / "jobs", callbacks=[stop()], resumed=True)) == expected
