"""Trains on the stand-in for TorchNeuron as a job on Trn2 does, and writes what went through its group.

Arguments: results folder, way (``neuron``, or ``cpu`` for the first training with Lightning's own DDP over gloo).
"""

import contextlib
import importlib

import torch

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._resume.fits import forget_fits
from tests.helpers.callbacks import Crash, crashing
from tests.helpers.sharded import save_after
from tests.helpers.tiny import loader, tiny_model, weights

pl = installed_namespaces()[0].module()
_QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


def _trainer(**arguments):
    return pl.Trainer(**lightning_sm.trainer_settings(**_QUIET, **arguments))


def train(way):
    """Two epochs, a test, and collectives of objects, and of tensors that have a mean."""
    cpu = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"} if way == "cpu" else {}
    model, trainer = tiny_model(pl), _trainer(max_epochs=2, accumulate_grad_batches=2, logger=False, **cpu)
    trainer.fit(model, loader(), loader())
    seen = {"weights": weights(model), "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()}}
    seen["tested"] = trainer.test(model, loader(), verbose=False)[0]["test_loss"]
    strategy, rank = trainer.strategy, trainer.global_rank
    seen["objects"] = [strategy.broadcast(value if rank == 0 else "mine") for value in ({"a": [1, None]}, "x" * 1000)]
    mean = strategy.reduce(torch.tensor([1.0 + rank], device=strategy.root_device), reduce_op="mean")
    seen["mean"] = mean.tolist()
    names = {"accelerator": type(trainer.accelerator).__name__, "strategy": type(strategy).__name__}
    return {**seen, **names, "device": str(strategy.root_device), "size": trainer.world_size}


def cast():
    """The types of the output under each precision, and whether and where the loss is scaled."""
    seen = {}
    for precision in ("bf16-mixed", "16-mixed", "32-true"):
        model = tiny_model(pl)
        model.layers.register_forward_hook(lambda module, inputs, output, name=precision: seen.update({name: output}))
        trainer = _trainer(max_steps=2, precision=precision, logger=False, enable_checkpointing=False)
        trainer.fit(model, loader())
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        seen[precision] = [str(seen[precision].dtype), scaler and [scaler.is_enabled(), str(scaler._device)]]
    return seen


def drop_out(try_, folder):
    """The weights of a model with dropout, whose random numbers are the device's."""
    forget_fits()  # as in a new process
    pl.seed_everything(3, verbose=False)
    model = tiny_model(pl)
    model.layers.insert(1, torch.nn.Dropout(0.5))
    # Another state than that of the first try, as in any other process.
    pl.seed_everything({"resumed": 99}.get(try_, 3), verbose=False)
    save_after(5)
    settings = {"checkpoint_dir": f"{folder}/saves-{try_ == 'whole'}"}
    callbacks = [crashing(pl, 6)] if try_ == "stopped" else []
    trainer = _trainer(max_epochs=2, gradient_clip_val=0.5, sagemaker=settings, callbacks=callbacks, logger=False)
    with contextlib.suppress(Crash):
        trainer.fit(model, loader())
    return {"weights": weights(model), "steps": trainer.global_step}


def main(folder, way):
    if way == "cpu":
        return train(way)
    standin = importlib.import_module("torch_neuronx")  # the real one is loaded by torch
    seen = {**train(way), "calls": list(standin.calls)}
    seen["precisions"] = cast()
    seen["tries"] = {try_: drop_out(try_, folder) for try_ in ("whole", "stopped", "resumed")}
    return seen
