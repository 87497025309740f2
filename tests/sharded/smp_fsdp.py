"""Trains by ``SMPFSDPStrategy`` over the stand-in for ``torch.sagemaker``, in the process group that is there."""

import json
import os

import pytorch_lightning as pl
import torch

import lightning_sm
from lightning_sm.errors import LightningSMError
from tests.helpers.processes import STANDINS
from tests.helpers.sharded import cpu_class
from tests.helpers.smp import SMPModel, data, flat, trainer

torch.__path__.append(str(STANDINS / "torch_in_image"))


class OnMeta(SMPModel):
    """Layers without memory, until FSDP makes it."""

    @staticmethod
    def _network():
        with torch.device("meta"):
            return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def run(folder, parameters, batch_size, model, **options):
    import torch.sagemaker as tsm  # type: ignore[import-not-found]

    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    tsm.state.is_initialized = False
    tsm.calls.clear()
    strategy = cpu_class(lightning_sm.SMPFSDPStrategy)(auto_wrap_policy={torch.nn.Linear}, state_dict_type="full")
    fitted = trainer(strategy=strategy, gradient_clip_val=0.05, **options)
    fitted.fit(model, data(batch_size), data(batch_size))
    seen = {"sampler": strategy.distributed_sampler_kwargs, "calls": [list(call) for call in tsm.calls]}
    with pl_full(fitted.model):
        seen["weights"] = flat(model.net.state_dict())
    try:
        fitted.save_checkpoint(f"{folder}/saved-{len(parameters)}.ckpt")
        seen["saved"] = "a file"
    except LightningSMError as error:
        seen["saved"] = str(error)
    return seen


def pl_full(module):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel.summon_full_params(module, writeback=False)


def train_each(folder):
    """What this rank saw with the parameters of each job."""
    seen = {
        "plain": run(folder, {}, 4, SMPModel()),
        "tensor": run(folder, {"tensor_parallel_degree": 2}, 8, SMPModel()),
        "meta": run(folder, {"hybrid_shard_degree": 0}, 4, OnMeta(), max_epochs=1),
    }
    try:
        callbacks = [pl.callbacks.ModelCheckpoint(f"{folder}/best")]
        run(folder, {"tensor_parallel_degree": 2}, 8, SMPModel(), callbacks=callbacks, enable_checkpointing=True)
    except LightningSMError as error:
        seen["early"] = str(error)
    del os.environ["SM_HP_MP_PARAMETERS"]
    return seen
