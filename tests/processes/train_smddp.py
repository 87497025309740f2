"""Trains over gloo with Lightning's DDP, and over the stand-in for SMDDP, in two parts with a checkpoint between.

Argument: results folder. Then it trains with ``sync_batchnorm`` over the stand-in, and once more alone on whole
batches: every step sees all the data, whichever process has which part of them.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.legacy import strategy_of
from tests.helpers.cpu_sync_batchnorm import allow_sync_batchnorm_on_cpu
from tests.helpers.plain import end_process_group
from tests.helpers.skips import installed_version
from tests.helpers.tiny import loader, tiny_model, weights, with_batch_norm

_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
_STEPS = 4
pl = installed_namespaces()[0].module()


class TinyData(pl.LightningDataModule):
    """Lightning makes its "infinite barrier", a gloo group, around ``prepare_data``."""

    prepared = 0

    def prepare_data(self):
        self.prepared += 1

    def train_dataloader(self):
        return loader()

    val_dataloader = test_dataloader = train_dataloader


def _calls():
    return list(getattr(sys.modules.get(_MODULE), "calls", ()))


def _trainer(way, epochs, **arguments):
    return pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=lightning_sm.SMDDPStrategy(process_group_backend="smddp") if way == "smddp" else "ddp",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )


def train(folder, way):
    def trainer(epochs):
        best = pl.callbacks.ModelCheckpoint(dirpath=f"{folder}/{way}", save_last=True, monitor="val_loss")
        return _trainer(way, epochs, accumulate_grad_batches=2, callbacks=[best])

    data, first = TinyData(), trainer(1)
    first.fit(tiny_model(pl), data)
    seen = {"calls": _calls(), "metrics": {k: float(v) for k, v in first.callback_metrics.items()}}
    seen["parameters"] = sum(parameter.numel() for parameter in first.lightning_module.parameters())

    model, second = tiny_model(pl), trainer(2)
    second.fit(model, data, ckpt_path=f"{folder}/{way}/last.ckpt")
    seen.update(weights=weights(model), steps=second.global_step, prepared=data.prepared)
    seen["tested"] = second.test(model, data, verbose=False)[0]["test_loss"]
    seen["best"] = Path(second.checkpoint_callback.best_model_path).name

    strategy, rank = strategy_of(second), second.global_rank
    seen["objects"] = [
        strategy.broadcast(value if rank == 0 else "mine")
        for value in ({"a": [1, None], "b": "é"}, None, "x" * 100_000, 5)
    ]
    seen["from_second"] = strategy.broadcast(f"by {rank}", src=1)
    seen["gathered"] = strategy.all_gather(torch.tensor([float(rank), 10.0])).tolist()
    seen["means"] = [
        strategy.reduce(torch.tensor(numbers), reduce_op=op).tolist()
        for numbers, op in (([rank + 1.0, 4.0], "mean"), ([2 * rank + 1, 4], "mean"), ([rank, 4], "sum"))
    ]
    seen["all_true"] = [strategy.reduce_boolean_decision(flag) for flag in (True, rank == 0)]
    strategy.barrier("end")
    return {**seen, "backend": dist.get_backend()}


def _normalized(model):
    norm = model.layers[1]
    return {
        "weights": weights(model),
        "mean": norm.running_mean.tolist(),
        "variance": norm.running_var.tolist(),
        "batches": int(norm.num_batches_tracked),
    }


def normalize():
    before, model = len(_calls()), with_batch_norm(tiny_model(pl))
    allow_sync_batchnorm_on_cpu()
    trainer = _trainer("smddp", _STEPS, sync_batchnorm=True, limit_val_batches=0, enable_checkpointing=False)
    trainer.fit(model, loader(samples=8, batch_size=4))
    return {**_normalized(model), "layer": type(model.layers[1]).__name__, "calls": _calls()[before:]}


def normalize_alone():
    model = with_batch_norm(tiny_model(pl))
    optimizer = model.configure_optimizers()
    ((inputs, targets),) = loader(samples=8, batch_size=8)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model.layers(inputs), targets).backward()
        optimizer.step()
    return _normalized(model)


def main(folder):
    # Not by the launcher's store, where the second group would find the addresses of the first.
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen = {"gloo": train(folder, "gloo")}
    end_process_group()
    seen["smddp"] = train(folder, "smddp")
    if installed_version("torch") >= (2, 0):
        seen.update(normalized=normalize(), alone=normalize_alone())
    return seen
