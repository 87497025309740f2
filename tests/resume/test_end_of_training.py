"""A job that is killed at its end, or started again after it, exports the model that it would have exported."""

import random

import pytest
import torch

from lightning_sm.callbacks import callback_class
from lightning_sm.callbacks.auto_resume import AutoResumeMixin
from lightning_sm.errors import CheckpointError
from tests.helpers.callbacks import averaging
from tests.helpers.checkpoint_files import damage
from tests.helpers.tiny import tiny_model, weights, with_batch_norm
from tests.resume.job import EPOCH, NAMESPACE, At, Job, kill, killed, pl

SETUPS = {
    "early stopping and average": lambda: [
        pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0),
        averaging(pl),
    ],
    "average": lambda: [averaging(pl)],
    "swa with batch norm": lambda: [pl.callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)],
}


def without(name, fit):
    """Fit in a process that is killed where ``AutoResume`` would call one of its methods."""
    setattr(AutoResumeMixin, name, kill)
    fit.run()


class Fit(Job):
    """A job with a set-up that exports its model."""

    def __init__(self, directory, name):
        super().__init__(directory)
        self.name = name

    def run(self, *more, epochs=3, **arguments):
        export = callback_class(NAMESPACE, "ModelExport")(str(self.directory / "model"))
        best = pl.callbacks.ModelCheckpoint(self.directory, "last", mode="max", save_on_train_epoch_end=False)
        model = with_batch_norm(tiny_model(pl)) if "batch norm" in self.name else tiny_model(pl)
        callbacks = [*SETUPS[self.name](), *more, export, best]
        return self.fit(epochs, model=model, callbacks=callbacks, min_epochs=2, enable_checkpointing=True, **arguments)

    def exported(self):
        path = self.directory / "model" / "model.pt"
        weights = {name: value.tolist() for name, value in torch.load(path).items()}
        path.unlink()
        return weights


# In the order in which a fit comes to them.
MOMENTS = {
    "in the second epoch": lambda fit: fit.run(At("on_train_batch_start", kill, step=11)),
    "before the save of the end": lambda fit: without("on_train_end", fit),
    "within on_train_end": lambda fit: fit.run(At("on_train_end", kill)),
    "before the record of the end": lambda fit: without("_end_fit", fit),
    "before the export": lambda fit: fit.run(At("on_fit_end", kill)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that gives what a run exports that nothing interrupts, and its trainer's results."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = results(Fit(tmp_path_factory.mktemp("whole"), name).run())
        return known[name]

    return get


def results(fit):
    metrics = {name: str(float(value)) for name, value in fit.trainer.callback_metrics.items()}  # some are NaN
    return fit.exported(), metrics, fit.trainer.current_epoch, fit.trainer.global_step, fit.trainer.should_stop


@pytest.mark.parametrize(
    "name", ["early stopping and average", pytest.param("swa with batch norm", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_the_end(tmp_path, name, whole, moment):
    expected, fit = whole(name), Fit(tmp_path, name)
    killed(lambda: MOMENTS[moment](fit))
    assert not (tmp_path / "model" / "model.pt").exists()
    fit.run()
    assert fit.trainer.fit_loop.min_epochs == 2
    if "batch norm" not in name:  # for whose statistics SWA passes over the data once more
        assert fit.steps == (expected[3] - 11 if "epoch" in moment else 0)
    assert results(fit) == expected
    for _ in range(2):
        fit.run()
        assert fit.steps == 0
        assert fit.says("This fit had ended with")
        assert results(fit) == expected


class ExtraState(torch.nn.Module):
    """A layer whose state holds more than tensors."""

    def get_extra_state(self):
        return random.Random(1)

    def set_extra_state(self, state):
        assert isinstance(state, random.Random)


def test_final_weights_are_loaded_as_saves_are(tmp_path):
    def model():
        found = tiny_model(pl)
        found.extra = ExtraState()
        return found

    job = Job(tmp_path).fit(model=model(), callbacks=[averaging(pl)])
    final = job.weights
    assert job.fit(model=model(), callbacks=[averaging(pl)]).weights == final
    assert job.steps == 0
    with pytest.raises(CheckpointError, match="does not fit this model or trainer"):
        job.fit(model=model(), callbacks=[averaging(pl)], weights_only=True)


@pytest.mark.full
def test_more_epochs_train_the_trained_weights_and_not_the_final_ones(tmp_path):
    whole = Fit(tmp_path / "whole", "average").run(epochs=4).exported()
    fit = Fit(tmp_path / "more", "average").run()
    fit.run(epochs=4)
    assert fit.steps == EPOCH
    assert fit.exported() == whole


def test_final_weights_of_a_model_that_saves_a_part_of_its_weights(tmp_path):
    """As one whose pretrained layers are made again, with ``strict_loading`` set to false."""
    job = Job(tmp_path)

    def run():
        model = tiny_model(pl)
        model.layers[0].requires_grad_(False)
        whole, model.strict_loading = model.state_dict, False
        model.state_dict = lambda: {name: each for name, each in whole().items() if name.startswith("layers.2")}
        return weights(job.fit(2, model=model, callbacks=[averaging(pl)]).trainer.lightning_module)

    assert run() == run()
    assert job.steps == 0


def test_a_damaged_last_save_is_trained_again_and_damaged_weights_are_made_again(tmp_path, whole):
    """Then the record of the end does not count."""
    fit = Fit(tmp_path, "early stopping and average").run()
    damage(fit.path("step-16-2.ckpt"), "flipped bit")
    fit.run()
    assert fit.steps == 0  # the save before it was due before the last validation
    assert fit.exported() == whole(fit.name)[0]
    damage(fit.path("weights.pt"), "truncated")
    for is_whole in (False, True):
        fit.run()
        assert (fit.steps, fit.says("Skipped weights.pt")) == (0, not is_whole)
        assert results(fit) == whole(fit.name)
