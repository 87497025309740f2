"""Trains with ``Trainer(sync_batchnorm=True)`` on the stand-in for SMDDP, and once more alone on whole batches.

Argument: results folder. Every step sees all the data, whichever process has which part of them.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from tests.helpers.cpu_sync_batchnorm import allow_sync_batchnorm_on_cpu
from tests.helpers.tiny import loader, tiny_model, weights, with_batch_norm

pl = installed_namespaces()[0].module()
STEPS = 4


def _told(model):
    norm = model.layers[1]
    return {
        "weights": weights(model),
        "mean": norm.running_mean.tolist(),
        "variance": norm.running_var.tolist(),
        "batches": int(norm.num_batches_tracked),
    }


def _alone():
    model = with_batch_norm(tiny_model(pl))
    optimizer = model.configure_optimizers()
    ((inputs, targets),) = loader(samples=8, batch_size=8)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model.layers(inputs), targets).backward()
        optimizer.step()
    return _told(model)


def main(folder):
    alone = _alone()
    allow_sync_batchnorm_on_cpu()
    model = with_batch_norm(tiny_model(pl))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=lightning_sm.SMDDPStrategy(process_group_backend="smddp"),
        sync_batchnorm=True,
        max_epochs=STEPS,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(samples=8, batch_size=4))
    standin = sys.modules["smdistributed.dataparallel.torch.torch_smddp"]
    seen = {"alone": alone, "together": _told(model), "layer": type(model.layers[1]).__name__, "calls": standin.calls}
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
