"""A tiny training that is restarted in one directory of saves; each fit stands for a process of its own."""

import os
import signal

import pytest
import torch

from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.series import saves_of
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import log_lines

__all__ = ["EPOCH", "NAMESPACE", "At", "Interrupted", "Job", "forked", "kill", "killed", "pl", "raising"]

# Batches in an epoch.
EPOCH = 8


class Interrupted(Exception):
    """Ends a fit as the loss of its container does."""


class At(pl.Callback):
    """Acts in a hook: each time, or at a step."""

    def __init__(self, hook, act, step=None):
        setattr(self, hook, lambda trainer, *_: act() if step in (None, trainer.global_step) else None)


def raising(error):
    """What raises an error."""

    def act():
        raise error

    return act


class Job:
    """A training job.

    Args:
        directory: Its checkpoint directory.

    Attributes:
        model, trainer: Those of the last fit.
        steps: How many batches that fit has trained.
        said: The lines of its log.
    """

    def __init__(self, directory):
        self.directory = directory

    def count_steps(self, model, stop_after):
        """Count the model's batches in ``steps``; raise :class:`Interrupted` after that many."""
        self.steps = 0
        batch_end = model.on_train_batch_end

        def count(*given, **named):
            self.steps += 1
            if stop_after == self.steps:
                raise Interrupted
            return batch_end(*given, **named)

        model.on_train_batch_end = count

    def fit(
        self,
        epochs=3,
        *,
        stop_after=None,
        model=None,
        callbacks=(),
        ckpt_path=None,
        is_new_process=True,
        val=True,
        **options,
    ):
        """Fit; raise :class:`Interrupted` after the batch with the number ``stop_after``."""
        if is_new_process:
            forget_fits()
        self.model = tiny_model(pl) if model is None else model
        self.count_steps(self.model, stop_after)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
        with log_lines() as self.said:
            self.trainer = self.make_trainer(list(callbacks), **{**quiet, "max_epochs": epochs, **options})
            self.trainer.fit(self.model, loader(), loader() if val else None, ckpt_path=ckpt_path)
        return self

    def make_trainer(
        self, callbacks, *, resume="auto", name="this-job", program="train-aaaaaa", save_every=0.01, **arguments
    ):
        """A trainer with ``AutoResume`` alone."""
        options = {key: arguments.pop(key) for key in ("weights_only", "async_save") if key in arguments}
        saves = callback_class(NAMESPACE, "AutoResume")(
            str(self.directory), resume, Identity(name, program), save_every=save_every, **options
        )
        arguments = {"num_sanity_val_steps": 0, "enable_checkpointing": False, **arguments}
        return pl.Trainer(devices=1, default_root_dir=str(self.directory), callbacks=[*callbacks, saves], **arguments)

    def interrupted(self, after, **more):
        with pytest.raises(Interrupted):
            self.fit(stop_after=after, **more)
        return self

    @property
    def weights(self):
        return weights(self.model)

    @property
    def saves(self):
        """The names of the saves of all programs and fits, newest first."""
        return [record["name"] for record in sorted(saves_of(self.directory, "*"), key=lambda each: -each["time"])]

    def path(self, name, fit=0, program="train-aaaaaa"):
        return self.directory / program / f"fit-{fit}" / name

    def says(self, words):
        return any(words in line for line in self.said)


# As if it were an installed package's: a job's steps are those of one fit, not of the training that goes on.
Job.__module__ = "pytest"


class Identity(ProgramIdentity):
    """An identity whose series has a name that the test chooses."""

    @property
    def series(self):
        return self.program


def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def forked(function):
    """Run a function in a copy of this process, which need not import everything again; return its number."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            signal.alarm(60)
            torch.set_num_threads(1)  # those of the parent are not there
            function()
            code = 0
        finally:
            os._exit(code)
    return number


def killed(fit):
    """Run ``fit`` in a process that is expected to be killed in it."""
    _, status = os.waitpid(forked(fit), 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
