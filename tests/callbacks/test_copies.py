"""A trainer is copied or pickled at any moment of a job, as libraries do that keep their best experiment."""

import copy
import pickle

import pytest
import torch

from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import NAMESPACE, pl

LOADER = torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2) / 16, batch_size=2)


class Model(pl.LightningModule):
    """At the top of the module, because it is pickled."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch + torch.rand(2)).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def copies_in(name):
    """A hook that copies the trainer when it runs first, and pickles it."""

    def hook(self, trainer, pl_module, *_):
        if isinstance(self.copies, dict) and name not in self.copies and not trainer.sanity_checking:
            copies, self.copies = self.copies, None
            pickle.dumps(trainer)
            copies[name] = copy.deepcopy((trainer, pl_module))
            self.copies = copies

    return hook


class Copies(pl.Callback):
    def __init__(self):
        self.copies = {}

    on_fit_start = copies_in("fit start")
    on_train_start = copies_in("train start")
    on_train_batch_end = copies_in("batch end")
    on_validation_end = copies_in("validation end")
    on_train_end = copies_in("train end")


def trained(directory, is_job):
    """The weights of the model, and of the copies, which are trained further."""
    forget_fits()
    pl.seed_everything(7)
    model, copies, more = Model(), Copies(), []
    if is_job:
        make = {name: callback_class(NAMESPACE, name) for name in ("AutoResume", "GracefulStop", "TrainingMonitor")}
        resume = make["AutoResume"](str(directory), save_every=0.01)
        more = [resume, make["GracefulStop"](), make["TrainingMonitor"]("1us", report=str(directory))]
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[copies, *more], enable_checkpointing=False,
        default_root_dir=str(directory), num_sanity_val_steps=1, enable_model_summary=False,
        enable_progress_bar=is_job, logger=False,
    )  # fmt: skip
    trainer.fit(model, LOADER, LOADER)
    found = {"itself": (trainer, model), **copies.copies, "after": copy.deepcopy((trainer, model))}
    for name, (copied, its_model) in found.items():
        if name != "itself":
            pl.seed_everything(8)
            copied.validate(its_model, LOADER, verbose=False)
            copied.fit(its_model, LOADER, LOADER)
    states = {(name, key): each for name, (_, its) in found.items() for key, each in its.state_dict().items()}
    return states, [copied.global_step for copied, _ in found.values()]


@pytest.mark.full
def test_a_copy_of_a_trainer_trains_as_plain_lightnings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (plain, plain_steps), (states, steps) = (trained(tmp_path / name, name == "job") for name in ("plain", "job"))
    assert steps == plain_steps
    assert states.keys() == plain.keys()
    assert [name for name, each in states.items() if not torch.equal(each, plain[name])] == []
