"""Trains with checkpoints at URLs, and writes what happened.

Arguments: results folder, kind of strategy, URLs to train with one after the other, each with ``=STEP`` where the
second process dies at that step.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_sm import trainer_settings
from lightning_sm._checkpoint.storage import Storage
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import auto_resume
from tests.helpers.sharded import cpu_strategy, sharded_model

PL = installed_namespaces()[0].module()
RANK = int(os.environ["RANK"])
EPOCHS = 3
# What was at the URL of a folder when the upload of its manifest began.
before_manifests = {}


class Progress(PL.Callback):
    def __init__(self, dies_at):
        self.dies_at, self.steps, self.started_at = dies_at, 0, None

    def on_train_start(self, trainer, module):
        self.started_at = trainer.global_step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.dies_at and RANK == 1:
            os._exit(9)

    def on_train_batch_end(self, trainer, *_):
        self.steps += 1


def observe_uploads():
    upload = Storage.upload

    def observed(storage, path, name):
        if name == "manifest.json":
            before_manifests[storage.url] = sorted(storage.files())
        upload(storage, path, name)

    Storage.upload = observed


def fit(kind, url, dies_at):
    auto_resume._finished_directories.clear()  # as in a new process
    PL.seed_everything(3)
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(5))
    model = sharded_model(PL)
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=0.01)
    progress = Progress(dies_at)
    trainer = PL.Trainer(
        **trainer_settings(
            sagemaker={"checkpoint_dir": url, "report": False, "log_metrics": False, "export": False},
            trainer_class=PL.Trainer, max_epochs=EPOCHS, accelerator="cpu", callbacks=[progress],
            strategy=cpu_strategy(kind, PL.strategies), logger=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True))
    resume = next(each for each in trainer.callbacks if isinstance(each, auto_resume.AutoResumeMixin))
    return {
        "resumed_from": resume.resumed_from,
        "started_at": progress.started_at,
        "steps": progress.steps,
        "weights": own(trainer.lightning_module),
    }


def own(module):
    """Every weight that this rank has."""
    found = []
    for parameter in module.parameters():
        shard = getattr(parameter, "ds_tensor", parameter.detach())
        shard = (shard.to_local() if isinstance(shard, DTensor) else shard).flatten()
        # DeepSpeed pads the last shards with whatever is in memory.
        found += shard[: max(0, getattr(parameter, "ds_numel", sys.maxsize) - RANK * len(shard))].tolist()
    return found


def main(folder, kind, *urls):
    observe_uploads()
    fits = []
    for given in urls:
        url, _, step = given.partition("=")
        fits.append(fit(kind, url, int(step) if step else None))
    result = {"fits": fits, "before_manifests": before_manifests}
    Path(folder, f"rank-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
