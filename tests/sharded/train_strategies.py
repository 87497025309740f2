"""Trains the same model by several strategies, one after the other, and writes what each rank saw.

Arguments: results folder, the kinds of strategies of ``tests/helpers/sharded.py`` to train over gloo, and those to
train over ``smddp``, the stand-in; separated by commas.
"""

import os
import sys
from datetime import timedelta

import pytorch_lightning as pl
import torch.distributed as dist

import lightning_sm
from lightning_sm import SMDDPDeepSpeedStrategy, SMDDPFSDPStrategy, SMDDPModelParallelStrategy, SMDDPStrategy
from tests.helpers.plain import end_process_group
from tests.helpers.sharded import gathered_weights, own_part, sharded_model, strategy_of
from tests.helpers.tiny import loader
from tests.sharded import smp_fsdp

_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
_OURS = {
    "DDPStrategy": SMDDPStrategy,
    "FSDPStrategy": SMDDPFSDPStrategy,
    "ModelParallelStrategy": SMDDPModelParallelStrategy,
    "DeepSpeedStrategy": SMDDPDeepSpeedStrategy,
}


def _strategy(kind, backend):
    arguments = {"data_parallel_size": "auto"} if kind.startswith("fsdp2") else {}
    return strategy_of(kind, _OURS, process_group_backend=backend, timeout=timedelta(seconds=90), **arguments)


def _train(kind, backend):
    before = len(_calls())
    strategy = _strategy(kind, backend)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(sharded_model(pl), loader(), loader())
    for module in trainer.model.modules():
        # FSDP2 keeps what it gathered for the last forward.
        getattr(module, "reshard", lambda: None)()
    return {
        "calls": _calls()[before:],
        "backend": dist.get_backend(),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "sampler": dict(strategy.distributed_sampler_kwargs),
        "own": sum(own_part(parameter).numel() for parameter in trainer.model.parameters()),
        "weights": gathered_weights(strategy, trainer.lightning_module),
        "object": strategy.broadcast({"rank": trainer.global_rank}, src=1),
        "optimize_sdp": os.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP"),
        "topology": str(lightning_sm.Topology.resolve().world_size),
    }


def main(folder, over_gloo, over_smddp):
    rank = lightning_sm.Topology.resolve().global_rank
    # DDP must not be trained in the job of the stand-in: the others make groups.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen = {"gloo": {kind: _train(kind, "gloo") for kind in over_gloo.split(",")}, "smp": smp_fsdp.train_each(folder)}
    end_process_group()
    seen["smddp"] = {kind: _train(kind, "smddp") for kind in over_smddp.split(",")}
    return seen


def _calls():
    return list(getattr(sys.modules.get(_MODULE), "calls", ()))
