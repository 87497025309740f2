import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from tests.helpers.environ import torchrun, without_launcher
from tests.helpers.processes import ROOT, local_rendezvous
from tests.helpers.tiny import loader
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()
HAS_STATE = NAMESPACE.version >= (1, 6)


class Model(PL.LightningModule):
    def __init__(self, filtered):
        super().__init__()
        torch.manual_seed(7)
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 1)
        self.filtered = filtered

    def training_step(self, batch, batch_index):
        return torch.nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        parameters = [p for p in self.parameters() if p.requires_grad] if self.filtered else self.parameters()
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def run(tmp_path, *more, filtered=True, ckpt_path=None, epochs=5, own=True, **arguments):
    model = Model(filtered)
    ours = ["DataPosition", "FinetuningState"] if own else []
    finetuning = PL.callbacks.BackboneFinetuning(1, lambda epoch: 1.5, train_bn=False)
    trainer = PL.Trainer(
        callbacks=[finetuning, *more, *(callback_class(NAMESPACE, name)() for name in ours)],
        default_root_dir=str(tmp_path),
        max_epochs=epochs,
        accelerator="cpu",
        **{"devices": 1, **arguments},
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(), ckpt_path=ckpt_path and str(ckpt_path))
    return {name: value.tolist() for name, value in model.named_parameters()}


class Save(PL.Callback):
    def __init__(self, path, epoch, hook, batch=None):
        self.path, self.epoch, self.hook, self.batch = path, epoch, hook, batch

    def _at(self, hook, trainer, batch=None):
        if (trainer.current_epoch, hook, batch) == (self.epoch, self.hook, self.batch):
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_index, *_):
        self._at("batch", trainer, batch_index)

    def on_train_epoch_end(self, trainer, *_):
        self._at("epoch", trainer)


@pytest.mark.skipif(not HAS_STATE, reason="Lightning 1.5 keeps no state_dict of callbacks")
@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize(
    ("epoch", "hook", "batch"), [(0, "epoch", None), (1, "batch", 3), (2, "batch", 3), (2, "epoch", None)]
)
def test_unfrozen_layers_are_so_after_a_resume(tmp_path, filtered, epoch, hook, batch):
    path = tmp_path / "saved.ckpt"
    whole = run(tmp_path, Save(path, epoch, hook, batch), filtered=filtered)
    assert run(tmp_path, filtered=filtered, ckpt_path=path) == whole


def test_without_it_they_are_not(tmp_path):
    path = tmp_path / "saved.ckpt"
    whole = run(tmp_path, Save(path, 2, "epoch"))
    assert run(tmp_path, ckpt_path=path, own=False) != whole


def test_a_checkpoint_without_the_state_is_told(tmp_path):
    path = tmp_path / "saved.ckpt"
    run(tmp_path, Save(path, 2, "epoch"), own=False)
    with log_lines() as lines:
        run(tmp_path, ckpt_path=path)
    assert (
        "Layers that BackboneFinetuning had unfrozen are frozen again: the checkpoint does not hold which ones."
        in lines
    )


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(not HAS_STATE, reason="Lightning 1.5 keeps no state_dict of callbacks")
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
    weights = run(folder, epochs=3, devices=2, strategy="ddp", plugins=[environment])
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(weights))
    torch.distributed.barrier()
    if child:
        _, status = os.waitpid(child, 0)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(_as_two_processes(*sys.argv[1:]))
