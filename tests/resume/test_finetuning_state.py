import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import lightning_sm
from lightning_sm._lightning.restart import resumes_within_epochs
from lightning_sm.callbacks import callback_class
from tests.helpers.environ import torchrun, without_launcher
from tests.helpers.processes import ROOT, local_rendezvous
from tests.helpers.series import LIBRARY
from tests.helpers.setups import Setup, in_order, shuffled
from tests.helpers.tiny import loader
from tests.resume.job import NAMESPACE, Job, pl
from tests.resume.test_setups import chosen, differences

within_epochs = pytest.mark.skipif(not resumes_within_epochs(NAMESPACE), reason="saved at an epoch's start only")


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


@within_epochs
@pytest.mark.parametrize("filtered", [True, False])
def test_unfrozen_layers_are_so_after_a_resume(tmp_path, monkeypatch, filtered):
    def setup(pl, size):
        return Setup(Model(filtered), shuffled(size), in_order(), {"callbacks": [finetuning()]})

    monkeypatch.setitem(LIBRARY, "backbone", setup)
    assert differences("backbone", tmp_path, chosen) == {}


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


@within_epochs
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
    environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__, str(tmp_path), local_rendezvous()[-1]]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert "newly unfrozen layers are averaged over all processes" in ended.stderr + ended.stdout


def _as_two_processes(folder, port):
    """Train with each of two processes, and write its weights as ``rank-N.json`` in a folder."""
    # Before anything has started a thread.
    child = os.fork()
    signal.alarm(60)
    rank = 1 if child == 0 else 0
    os.environ.update(torchrun(rank, 2, rank, 2, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
    environment = lightning_sm.SageMakerEnvironment()
    trainer = pl.Trainer(
        callbacks=[finetuning(), state()], default_root_dir=folder, max_epochs=3, accelerator="cpu", devices=2,
        strategy="ddp", plugins=[environment], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    model = Model(True)
    trainer.fit(model, loader())
    weights = {name: value.tolist() for name, value in model.named_parameters()}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(weights))
    torch.distributed.barrier()
    if child:
        _, status = os.waitpid(child, 0)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(_as_two_processes(*sys.argv[1:]))
