import json
import os
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import lightning_sm
from lightning_sm.callbacks import callback_class
from tests.helpers import processes
from tests.helpers.setups import Setup, in_order, shuffled
from tests.helpers.tiny import loader
from tests.resume.job import NAMESPACE, Job, pl
from tests.resume.test_setups import differences, few


class Model(pl.LightningModule):
    def __init__(self, filtered):
        super().__init__()
        torch.manual_seed(7)
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 1)
        self.filtered = filtered

    def training_step(self, batch, batch_index):
        return torch.nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self.training_step(batch, batch_index))

    def configure_optimizers(self):
        parameters = [p for p in self.parameters() if p.requires_grad] if self.filtered else self.parameters()
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def finetuning():
    return pl.callbacks.BackboneFinetuning(1, lambda epoch: 1.5, train_bn=False)


def state():
    return callback_class(NAMESPACE, "FinetuningState")()


@pytest.mark.parametrize("filtered", [True, False])
def test_unfrozen_layers_are_so_after_a_resume(tmp_path, filtered):
    def setup(pl, size):
        return Setup(Model(filtered), shuffled(size), in_order(), {"callbacks": [finetuning()]})

    assert differences(setup, tmp_path, few) == {}


def test_a_checkpoint_without_the_state_is_told(tmp_path):
    job = Job(tmp_path / "one")
    job.fit(2, model=Model(True), callbacks=[finetuning()]).trainer.save_checkpoint(tmp_path / "saved.ckpt")
    job = Job(tmp_path / "other")
    job.fit(3, model=Model(True), callbacks=[finetuning(), state()], ckpt_path=str(tmp_path / "saved.ckpt"))
    line = "Layers that BackboneFinetuning had unfrozen are frozen again: the checkpoint does not hold which ones."
    assert line in job.said


class Code:
    """Pickled as a call that a loader of weights only refuses."""

    def __reduce__(self):
        return os.getenv, ("HOME",)


def test_no_code_of_a_checkpoint_is_run_where_only_weights_may_be_loaded(tmp_path):
    """Under FSDP the file is read before Lightning reads it."""
    strategy = pl.strategies.FSDPStrategy()
    strategy.load_checkpoint = read = mock.Mock()
    torch.save({"callbacks": {"own": Code()}}, tmp_path / "a.ckpt")
    for weights_only in (False, True):
        resume = callback_class(NAMESPACE, "AutoResume")(str(tmp_path), weights_only=weights_only)
        callback, model = state(), Model(True)
        trainer = SimpleNamespace(strategy=strategy, callbacks=[finetuning(), callback, resume], optimizers=[])
        callback.setup(trainer, model, "fit")
        with pytest.raises(pickle.UnpicklingError) if weights_only else nullcontext():
            strategy.load_checkpoint(tmp_path / "a.ckpt")
        callback.teardown(trainer, model, "fit")
    read.assert_called_once_with(tmp_path / "a.ckpt")


@pytest.mark.full
def test_processes_train_unfrozen_layers_together(tmp_path):
    job = processes.Job(tmp_path, __file__).torchrun(1, 2)
    first, second = job.results(2)
    assert first == second
    assert "newly unfrozen layers are averaged over all processes" in job.output


def _train_together(folder):
    """Train with each of two processes, and write its weights as ``rank-N.json`` in a folder."""
    environment = lightning_sm.SageMakerEnvironment()
    trainer = pl.Trainer(
        callbacks=[finetuning(), state()], default_root_dir=folder, max_epochs=3, accelerator="cpu", devices=2,
        strategy="ddp", plugins=[environment], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    model = Model(True)
    trainer.fit(model, loader())
    weights = {name: value.tolist() for name, value in model.named_parameters()}
    Path(folder, f"rank-{trainer.global_rank}.json").write_text(json.dumps(weights))


if __name__ == "__main__":
    _train_together(*sys.argv[1:])
