"""Trains by ``SMPStrategy`` over the stand-in for AWS's library, case by case, and writes what each rank saw.

Arguments: results folder, and as JSON each case: parameters of the job, arguments of the trainer, size of a batch.
"""

import json
import os
from pathlib import Path
from unittest import mock

import pytorch_lightning as pl
import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smdistributed.modelparallel.torch import _state

import lightning_sm
from lightning_sm._lightning import Namespace
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm.callbacks import callback_class
from tests.helpers.callbacks import Crash, crashing
from tests.helpers.sharded import save_after
from tests.helpers.smp import INITIAL_SCALE, SMPModel, data, flat, mixed_precision, trainer
from tests.processes import smp_refusals

_SPACE = Namespace("pytorch_lightning")


def new_script(parameters):
    """As a script that starts: the library has wrapped no model, and the job has these parameters."""
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    _state.reset()
    forget_fits()


def fit(case, **more):
    strategy = lightning_sm.SMPStrategy(network="net", trace_device="cpu") if case.get("ours") else "smp"
    fitted = trainer(strategy=strategy, **mixed_precision(case.get("mixed")), **{**case.get("trainer", {}), **more})
    model, batches = SMPModel(late=case.get("late", False)), data(case["batch_size"])
    fitted.fit(model, batches, batches)
    return fitted, model


def whole(fitted):
    with mock.patch.object(fitted.strategy, "_save_distributed_checkpoint", False):
        return flat(fitted.strategy.lightning_module_state_dict())


def train(case):
    # Where the first scale lets gradients overflow, whole batches and microbatches skip different steps.
    smp.amp.GradScaler.initial = smp.DistributedOptimizer.initial = INITIAL_SCALE
    fitted, model = fit(case)
    batches = data(case["batch_size"])
    seen = {
        "metrics": {name: float(value) for name, value in fitted.callback_metrics.items()},
        "hooks": model.hooks,
        "sampler": fitted.strategy.distributed_sampler_kwargs,
        "lr": fitted.optimizers[0].param_groups[0]["lr"],
        "strategy": type(fitted.strategy).__name__,
        "weights": whole(fitted),
        "tested": fitted.test(model, batches, verbose=False)[0]["train_loss"],
        "predicted": [list(each.shape) for each in fitted.predict(model, batches)],
    }
    return {**seen, "calls": list(smp.calls)}


def resume(case, folder):
    """Crash after a save of the series, start again, and export the model."""

    def callbacks():
        return callback_class(_SPACE, "AutoResume")(str(folder / "checkpoints"), "auto", ProgramIdentity("this"))

    save_after(6, 8)
    try:
        fit(case, callbacks=[callbacks(), crashing(pl, 9)])
    except Crash:
        new_script(case["parameters"])
    own = callbacks()
    export = callback_class(_SPACE, "ModelExport")(str(folder / "model"), export_weights="last")
    fitted, _ = fit(case, callbacks=[own, export])
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    dist.barrier()
    exported = flat(torch.load(folder / "model" / "model.pt"))
    return {"weights": whole(fitted), "resumed_from": own.resumed_from, "files": files, "exported": exported}


def main(folder, cases):
    seen = {}
    for name, case in json.loads(cases).items():
        new_script(case["parameters"])
        if name == "refused":
            seen[name] = smp_refusals.main(new_script)
        elif case.get("resume"):
            seen[name] = resume(case, Path(folder, name))
        else:
            seen[name] = train(case)
    return seen
