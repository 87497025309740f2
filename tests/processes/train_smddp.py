"""Trains on the stand-in for SMDDP, in two parts with a checkpoint between, and writes what went through its group.

Arguments: results folder, way (``ours``, ``gloo`` for the same with Lightning's DDP over gloo, ``lightnings`` for
Lightning's DDP over the stand-in, which imports it by itself).
"""

import inspect
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.legacy import ddp_base_path, strategy_of
from tests.helpers.tiny import loader, tiny_model, weights

_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
NAMESPACE = installed_namespaces()[0]
pl = NAMESPACE.module()


class TinyData(pl.LightningDataModule):
    """Lightning makes its "infinite barrier", a gloo group, around ``prepare_data``."""

    prepared = 0

    def prepare_data(self):
        self.prepared += 1

    def train_dataloader(self):
        return loader()

    val_dataloader = test_dataloader = train_dataloader


def _strategy(way):
    if way == "ours":
        return lightning_sm.SMDDPStrategy(process_group_backend="smddp")
    if way != "gloo":
        __import__(_MODULE)
    backend = "gloo" if way == "gloo" else "smddp"
    module, name = ddp_base_path(NAMESPACE).split(":")
    ddp = getattr(NAMESPACE.module(module), name)
    if "process_group_backend" in inspect.signature(ddp).parameters:
        return ddp(process_group_backend=backend)
    os.environ["PL_TORCH_DISTRIBUTED_BACKEND"] = backend  # Lightning 1.5
    return ddp()


def _calls():
    return list(getattr(sys.modules.get(_MODULE), "calls", ()))


def _trainer(folder, way, epochs):
    return pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=_strategy(way),
        max_epochs=epochs,
        accumulate_grad_batches=2,
        callbacks=[pl.callbacks.ModelCheckpoint(dirpath=f"{folder}/{way}", save_last=True, monitor="val_loss")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main(folder, way):
    data, first = TinyData(), _trainer(folder, way, 1)
    first.fit(tiny_model(pl), data)
    seen = {"calls": _calls(), "metrics": {k: float(v) for k, v in first.callback_metrics.items()}}
    seen["parameters"] = sum(parameter.numel() for parameter in first.lightning_module.parameters())

    model, second = tiny_model(pl), _trainer(folder, way, 2)
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
    seen["backend"] = dist.get_backend()
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
