"""``AutoResume`` in one process; ``tests/fits`` has programs of several fits, ``tests/processes`` several ranks."""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.checkpoint_files import Extra, damage
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import log_lines
from tests.resume.job import EPOCH, NAMESPACE, At, Interrupted, Job, pl, raising


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "checkpoints")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights of three epochs without interruption."""
    return Job(tmp_path_factory.mktemp("elsewhere")).fit().weights


def test_a_restarted_fit_continues_from_its_newest_save(job, uninterrupted, recwarn):
    job.interrupted(after=EPOCH + 3)
    assert job.saves == [f"step-{EPOCH + 2}.ckpt", f"step-{EPOCH + 1}.ckpt"]
    job.fit()
    assert (job.steps, job.trainer.global_step) == (2 * EPOCH - 2, 3 * EPOCH)
    assert job.weights == uninterrupted
    source = job.directory / "train-aaaaaa" / "fit-0"
    assert job.said[0] == f"Resuming fit 0 of this program from step-10.ckpt (epoch 1, step 10) in {source}"
    assert "Resuming within an epoch: epoch 1 after 2 batches." in job.said
    assert [str(each.message) for each in recwarn if "not resumable" in str(each.message)] == []
    # One before the last validation, one at the end.
    kept = ["fit.json", "step-24-2.ckpt", "step-24-2.json", "step-24.ckpt", "step-24.json"]
    assert sorted(os.listdir(source)) == kept


@pytest.mark.parametrize("kind", ["truncated", "flipped bit"])
def test_damaged_saves_are_passed_over(job, uninterrupted, kind):
    job.interrupted(after=EPOCH + 3)
    damage(job.path("step-10.ckpt"), kind)
    job.interrupted(after=1)
    assert job.says("Skipped step-10.ckpt in ")
    # The damaged one is gone, or it would be the newest for ever.
    assert job.saves == ["step-9.ckpt"]
    damage(job.path("step-9.ckpt"), kind)
    job.interrupted(after=4)
    assert job.says("can be used: the fit starts from scratch")
    assert job.saves[:1] == ["step-3.ckpt"]
    job.fit()
    assert job.steps == 3 * EPOCH - 3
    assert job.weights == uninterrupted


class Saves(pl.Trainer):
    """Saves for something else than a restart."""

    def save_checkpoint(self, filepath, *args, **more):
        torch.save(self.lightning_module.state_dict(), filepath)


class Exports(pl.plugins.CheckpointIO):
    """Writes what no training can load, as for a library of models."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        del checkpoint["state_dict"]
        torch.save(checkpoint, path)

    def load_checkpoint(self, path, storage_options=None):
        raise AssertionError(path)

    def remove_checkpoint(self, path):
        os.remove(path)


class OneWay(pl.Callback):
    """Writes the best model in another format, as plain Lightning calls it for a ModelCheckpoint only."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        raise AssertionError("called for a save of the series")


class Disturbs(pl.Callback):
    """Sets an optimizer to evaluation, as for schedule-free ones: the next step's weights would be others."""

    kept = None

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["kept"] = trainer.global_step
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 100.0
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(0.5)

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.kept = checkpoint["kept"]


def test_a_project_that_saves_in_its_own_way_does_not_change_the_series(job, uninterrupted, monkeypatch):
    monkeypatch.setattr(pl, "Trainer", Saves)
    job.interrupted(after=EPOCH + 3, plugins=[Exports()], callbacks=[OneWay(), Disturbs()])
    disturbs = Disturbs()
    job.fit(plugins=[Exports()], callbacks=[OneWay(), disturbs])
    assert (job.steps, disturbs.kept) == (2 * EPOCH - 2, EPOCH + 2)
    assert job.weights == uninterrupted


def test_require_needs_a_save_of_the_first_fit(job):
    with pytest.raises(CheckpointError, match=r"resume is require, and no checkpoint in .* can be used. HINT: "):
        job.fit(resume="require")
    assert job.steps == 0
    job.interrupted(after=3).fit(1, resume="require")
    assert job.steps == EPOCH - 2
    job.fit(1, resume="require", is_new_process=False)  # the second fit of the program
    assert job.steps == EPOCH


def test_never_starts_from_scratch_and_its_own_saves_count_from_then_on(job, uninterrupted):
    job.fit(2).interrupted(after=5, resume="never")
    assert job.steps == 5
    assert job.says("are not used: sagemaker.resume is never")
    assert job.saves == ["step-4.ckpt", "step-3.ckpt"]
    job.fit()
    assert job.steps == 3 * EPOCH - 4
    assert job.weights == uninterrupted


# --- fits that have ended


def test_fits_have_series_of_their_own_and_earlier_ones_keep_one_save(job):
    whole = [job.fit(1).weights, job.fit(2, is_new_process=False).weights]
    assert job.saves == ["step-16-2.ckpt", "step-16.ckpt", "step-8-2.ckpt"]
    job.fit(1)
    assert (job.steps, job.weights) == (0, whole[0])
    job.fit(2, is_new_process=False)
    assert (job.steps, job.weights) == (0, whole[1])
    # Where an earlier fit trains on, later ones have begun from other weights.
    job.interrupted(after=2, epochs=2)
    assert not job.path("", fit=1).exists()


def raises(error, step=10):
    """A callback that raises an error at a step, as one that prunes a trial of a search."""
    return At("on_train_batch_start", raising(error), step)


@pytest.mark.full
def test_later_fits_stay_while_an_earlier_one_raises_what_the_program_has_caught(job):
    def trained(step):
        """How many steps the second fit of a new process trains, whose first one raises at a step."""
        with suppress(Interrupted):
            job.fit(2, callbacks=[raises(Interrupted(), step)])
        return job.fit(1, is_new_process=False).steps

    assert [trained(step) for step in (10, 10, 10, 12, 12, -1, -1)] == [EPOCH, 0, 0, EPOCH, 0, EPOCH, 0]


def test_a_stop_or_an_error_after_the_end_is_no_other_end_of_a_fit(job):
    def ends(error):
        with pytest.raises(type(error)):
            job.fit(2, callbacks=[raises(error)])

    ends(Interrupted())
    job.fit(1, is_new_process=False)
    ends(SystemExit(1))
    assert job.path("fit.json", fit=1).exists()
    ends(Interrupted())
    assert job.fit(1, is_new_process=False).steps == 0
    job.fit(2)
    with pytest.raises(Interrupted):
        job.fit(2, callbacks=[At("on_fit_end", raising(Interrupted()))])
    assert job.fit(2).steps == 0


# --- what cannot be restored


def test_a_changed_model_says_what_has_changed(job):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(pl)
    model.layers = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    model.head = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError) as caught:
        job.fit(model=model)
    message = str(caught.value)
    assert 'Missing key(s) in state_dict: "head.weight", "head.bias"' in message
    assert "size mismatch for layers.0.weight" in message
    assert "HINT: Undo what has changed since it was saved, and make" in message
    model = tiny_model(pl)
    first, second = list(model.parameters())[:2], list(model.parameters())[2:]
    model.configure_optimizers = lambda: torch.optim.SGD([{"params": first}, {"params": second}], lr=0.05)
    with pytest.raises(CheckpointError, match=r"does not fit this model or trainer: .*parameter group"):
        job.fit(model=model)
    # What an error has left does not disturb the next fit of this process.
    job.fit(2)
    assert job.steps == EPOCH


def test_the_file_of_a_csv_logger_goes_on_unless_it_is_large(job, tmp_path, monkeypatch):
    def rows(folder, epochs, **more):
        logger = pl.loggers.CSVLogger(tmp_path / folder, prefix='two\nlines,"')
        with suppress(Interrupted):
            job.fit(epochs, logger=logger, log_every_n_steps=1, **more)
        return Path(logger.log_dir, "metrics.csv").read_text().splitlines()

    rows("first", 2, stop_after=EPOCH + 3)
    found = rows("second", 2)
    assert found == rows("whole", 2, program="whole-aaaaaa")
    assert sum(row[:1].isdigit() for row in found) == 4
    monkeypatch.setattr("lightning_sm._lightning.csv_logs.MAX_STATE_BYTES", 100)
    rows("third", 3)
    assert len(rows("fourth", 4)) < len(found)
    assert job.says("metrics.csv, which was larger than 4 MiB.")


def test_another_optimizer_than_that_of_the_save_is_told_of(job, caplog):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(pl)
    model.configure_optimizers = lambda: torch.optim.AdamW(model.parameters())
    reason = "it is of SGD, and configure_optimizers returns AdamW"
    with pytest.raises(CheckpointError, match=f"does not fit this model or trainer: {reason}: it has no entry 'step'"):
        job.fit(model=model)
    assert f"The optimizers are not those of the checkpoint: {reason}. HINT: Let it return" in caplog.text


class AssignsSchedule(pl.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizers[0], lambda step: 0.5**step)
            trainer.strategy.lr_scheduler_configs = [pl.utilities.types.LRSchedulerConfig(scheduler)]


def test_a_schedule_that_only_the_program_can_make_is_told_of(job, caplog):
    job.interrupted(after=EPOCH + 2, callbacks=[AssignsSchedule()])
    job.fit(callbacks=[AssignsSchedule()])
    reason = "it is of SGD, LambdaLR of optimizer 0, and configure_optimizers returns SGD. HINT: Let it return"
    assert f"The optimizers are not those of the checkpoint: {reason}" in caplog.text


def test_a_given_checkpoint_that_is_missing_is_no_model_that_does_not_fit(job, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.ckpt"):
        job.fit(ckpt_path=str(tmp_path / "nowhere.ckpt"))


def test_the_models_own_on_load_checkpoint_may_change_what_is_loaded(job):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(pl)
    model.more = torch.nn.Linear(1, 1)
    model.configure_optimizers = lambda: torch.optim.SGD(model.layers.parameters(), lr=0.05, momentum=0.9)
    model.on_load_checkpoint = lambda checkpoint: checkpoint["state_dict"].update(
        {f"more.{name}": value for name, value in model.more.state_dict().items()}
    )
    job.fit(2, model=model)
    assert job.steps == EPOCH


class SavesObject(pl.Callback):
    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["extra"] = Extra()

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        """Only who has it is called for a save of the series."""


def test_code_of_saves_may_be_forbidden(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    job.interrupted(after=2, weights_only=True, callbacks=[SavesObject()])
    before = Extra.loaded
    with pytest.raises(CheckpointError, match=r"(?s)does not fit this model or trainer: .*[Ww]eights.only"):
        job.fit(weights_only=True)
    assert Extra.loaded == before
    job.fit()
    assert Extra.loaded > before
    assert job.weights == uninterrupted


# --- what is no training of a job


def test_a_fast_run_and_a_validation_neither_resume_nor_save(job):
    job.interrupted(after=EPOCH + 1)
    before = job.saves
    job.fit(fast_dev_run=True)
    assert (job.steps, job.saves) == (1, before)
    own = callback_class(NAMESPACE, "AutoResume")(str(job.directory), "require")
    trainer = pl.Trainer(
        logger=False, enable_progress_bar=False, enable_checkpointing=False, callbacks=[own], accelerator="cpu"
    )
    model = tiny_model(pl)
    first = weights(model)
    with log_lines() as said:
        trainer.validate(model, loader(), verbose=False)
    assert (weights(model), said) == (first, [])


# --- when it is saved


@pytest.mark.parametrize(
    ("cost", "save_every", "val", "expected"),
    [
        pytest.param(0, 60, False, [6, 12, 18, 24], id="when the time has passed, and at the end"),
        pytest.param(0, 600, True, [8, 16, 24, 24], id="before a validation after a tenth of the time"),
        pytest.param(0, 1200, True, [16, 24], id="not before that"),
        pytest.param(3, 20, False, [2, 8, 14, 20, 24], id="20 times the duration of a save after the one before"),
    ],
)
def test_when_it_is_saved(job, monkeypatch, cost, save_every, val, expected):
    """Each batch takes ten seconds, and each save ``cost``."""
    clock: Any = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr("lightning_sm._resume.saver.time", clock)
    steps = []

    class Passes(pl.Callback):
        def on_train_batch_start(self, *_):
            clock.now += 10

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            clock.now += cost
            steps.append(trainer.global_step)

        def on_load_checkpoint(self, *_):
            """Only who has it is called for a save of the series."""

    job.fit(save_every=save_every, val=val, callbacks=[Passes()])
    assert steps == expected
    stretched = ["A save takes 3 s: saving every 60 s, so that it takes 5 %"] if cost else []
    assert [line for line in job.said if "5 %" in line] == stretched


# --- how it is saved


REPLACE = "lightning_sm._resume.atomic_io.replace_atomically"


def full(partial, target):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("async_save", [False, True])
def test_a_save_that_fails_ends_the_fit_and_older_ones_stay(job, async_save, monkeypatch):
    fills = At("on_train_batch_start", lambda: monkeypatch.setattr(REPLACE, full), step=5)
    with pytest.raises(CheckpointError, match=r"step-\d+\.ckpt could not be saved .*No space left on device.* HINT: "):
        job.fit(callbacks=[fills], async_save=async_save)
    monkeypatch.undo()
    # In the background two saves may not have been complete.
    steps = next(step for step in ((5, 4, 3) if async_save else (5,)) if f"step-{step}.ckpt" in job.saves)
    assert job.saves == [f"step-{steps}.ckpt", f"step-{steps - 1}.ckpt"]
    assert not [name for name in os.listdir(job.path("")) if name.startswith(".")]
    assert job.fit(async_save=async_save).steps == 3 * EPOCH - steps


def test_an_error_of_the_training_is_raised_and_not_that_of_a_save(job, monkeypatch):
    monkeypatch.setattr(REPLACE, full)
    job.interrupted(after=2, async_save=True)
    assert job.says("No space left on device")
