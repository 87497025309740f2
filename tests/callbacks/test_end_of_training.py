"""A job that is killed at its end, or started again after it, exports the model that it would have exported."""

import os
import signal

import pytest
import torch

from lightning_sm._checkpoint.candidates import JobIdentity
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import auto_resume, callback_class
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
pl = NAMESPACE.module()
# Batches in an epoch.
EPOCH = 8


class Average(pl.Callback):
    """A moving average as projects write it, which comes into the model at the end."""

    def __init__(self):
        self.shadow = None

    def on_fit_start(self, trainer, pl_module):
        if self.shadow is None:
            self.shadow = [weight.detach().clone() for weight in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, *_):
        for average, weight in zip(self.shadow, pl_module.parameters()):
            average.lerp_(weight.detach(), 0.3)

    def on_train_end(self, trainer, pl_module):
        for average, weight in zip(self.shadow, pl_module.parameters()):
            kept = weight.data.clone()
            weight.data.copy_(average)
            average.copy_(kept)


class SavedAverage(Average):
    def state_dict(self):
        return {"average": [average.clone() for average in self.shadow]}

    def load_state_dict(self, state):
        self.shadow = state["average"]

    if NAMESPACE.version < (1, 6):  # which has no state_dict, and calls these with the state instead of the checkpoint

        def on_save_checkpoint(self, *_):
            return self.state_dict()

        def on_load_checkpoint(self, trainer, pl_module, state):
            self.load_state_dict(state)


class AtTheEnd(pl.Callback):
    """Changes the weights, without anything that it would have to know."""

    def on_train_end(self, trainer, pl_module):
        for weight in pl_module.parameters():
            weight.data.mul_(0.5)


class EarlyStop(pl.Callback):
    def on_validation_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch >= 1


def early_stopping():
    return [pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)]


def averaging(name, **arguments):
    return [getattr(pl.callbacks, name)(**arguments)]


def swa():
    return [pl.callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)]


SETUPS = {
    "nothing": list,
    "early stopping": early_stopping,
    "a callback that stops": lambda: [EarlyStop()],
    "early stopping and average": lambda: [*early_stopping(), SavedAverage()],
    "average": lambda: [SavedAverage()],
    "at the end": lambda: [AtTheEnd()],
    "swa": swa,
    "swa with batch norm": swa,
    "WeightAveraging": lambda: averaging("WeightAveraging"),
    "EMAWeightAveraging": lambda: averaging("EMAWeightAveraging", decay=0.9),
}


class Fit:
    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.steps = 0

    def run(self, prepare=lambda own: None, epochs=3, more=(), **arguments):
        """Fit as a new process would. ``prepare`` gets the callbacks by their names."""
        auto_resume._finished_directories.clear()
        pl.seed_everything(3)
        own = {
            name: callback_class(NAMESPACE, name)(*arguments)
            for name, arguments in {
                "SafeSaves": (),
                "AutoResume": (str(self.folder), "auto", JobIdentity("a-job")),
                "DataPosition": (),
                "ModelExport": (str(self.folder / "model"),),
            }.items()
        }
        prepare(own)
        each_epoch = pl.callbacks.ModelCheckpoint(
            self.folder, "last", mode="max", every_n_epochs=1, save_on_train_epoch_end=True
        )
        by_validation = pl.callbacks.ModelCheckpoint(self.folder, "validated", save_on_train_epoch_end=False)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=True,
            enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=str(self.folder),
            callbacks=[*SETUPS[self.name](), *more, *own.values(), each_epoch, by_validation], **arguments,
        )  # fmt: skip
        model = tiny_model(pl)
        if "batch norm" in self.name:
            first, *others = model.layers
            model.layers = torch.nn.Sequential(first, torch.nn.BatchNorm1d(8), *others)
        self.steps = 0
        model.on_train_batch_start = self._count
        with log_lines() as self.said:
            trainer.fit(model, loader(), loader())
        return self

    def _count(self, *_):
        self.steps += 1

    def exported(self):
        path = self.folder / "model" / "model.pt"
        weights = {name: value.tolist() for name, value in torch.load(path).items()}
        path.unlink()
        return weights


def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_the_third_epoch(trainer, pl_module):
    if trainer.current_epoch == 2:
        kill()


class Kill(pl.Callback):
    def __init__(self, hook):
        setattr(self, hook, kill)


# The last checkpoint has been saved; the end has been noted; all hooks of the end have been called; it is noted that
# they were, and the export is to begin.
MOMENTS = {
    "before the end": (lambda own: setattr(own["AutoResume"], "on_train_end", kill), ()),
    "within on_train_end": (lambda own: None, ("on_train_end",)),
    "after on_train_end": (lambda own: setattr(own["AutoResume"], "_after_run", kill), ()),
    "in the third epoch": (
        lambda own: setattr(own["DataPosition"], "on_train_epoch_start", kill_in_the_third_epoch),
        (),
    ),
    "before the export": (lambda own: setattr(own["ModelExport"], "on_fit_end", kill), ()),
}


def killed(fit, moment, **arguments):
    """Fit in a process that is killed at a moment."""
    prepare, hooks = MOMENTS[moment]
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            torch.set_num_threads(1)
            fit.run(prepare, more=[Kill(hook) for hook in hooks], **arguments)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def available(name):
    return "WeightAveraging" not in name or hasattr(pl.callbacks, name)


SLOW = [name for name in SETUPS if available(name) and name not in ("early stopping and average", "swa")]


@pytest.fixture(
    params=["early stopping and average", "swa", *(pytest.param(name, marks=pytest.mark.jobs) for name in SLOW)]
)
def name(request):
    return request.param


@pytest.fixture
def whole(tmp_path, name):
    """What a run exports that nothing interrupts."""
    return Fit(tmp_path / "whole", name).run().exported()


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if "epoch" not in moment])
def test_killed_at_the_end(tmp_path, name, whole, moment):
    fit = Fit(tmp_path / "killed", name)
    killed(fit, moment)
    assert not (fit.folder / "model" / "model.pt").exists()
    fit.run()
    assert fit.steps == 0
    assert fit.exported() == whole
    assert fit.run().exported() == whole


def test_finished_and_started_again(tmp_path, name, whole):
    fit = Fit(tmp_path / "whole", name).run()
    assert fit.steps == 0
    assert any("This job had finished" in line for line in fit.said)
    assert fit.exported() == whole
    changed = name not in ("nothing", "early stopping", "a callback that stops", "swa with batch norm")
    assert (fit.folder / "final-weights.ckpt").exists() == changed


def test_more_epochs_go_on_from_the_trained_weights_and_not_the_final_ones(tmp_path):
    whole = Fit(tmp_path / "whole", "average").run(epochs=4).exported()
    fit = Fit(tmp_path / "more", "average")
    fit.run()
    fit.run(epochs=4)
    assert fit.steps == EPOCH
    assert fit.exported() == whole


def test_final_weights_that_are_damaged_are_made_again(tmp_path, name, whole):
    fit = Fit(tmp_path / "whole", name)
    final = fit.folder / "final-weights.ckpt"
    if not final.exists():
        pytest.skip("nothing changes the weights at the end")
    final.write_bytes(final.read_bytes()[:-50])
    fit.run()
    assert fit.steps == 0
    assert fit.exported() == whole


def test_a_stop_that_least_epochs_forbid_is_none(tmp_path):
    fit = Fit(tmp_path, "a callback that stops")
    killed(fit, "in the third epoch", min_epochs=3)
    fit.run(min_epochs=3)
    assert fit.steps == EPOCH
