"""What ``SMPStrategy`` refuses, each in a script of its own."""

from typing import Any, Dict

import pytorch_lightning as pl
import torch

from lightning_sm.errors import LightningSMError
from tests.helpers.smp import SMPModel, data, trainer

PARAMETERS = {"partitions": 2, "microbatches": 2, "ddp": True}


class Manual(SMPModel):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class TwoNetworks(SMPModel):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)


class OwnParameter(SMPModel):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))


class Compiled(SMPModel):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net)


def main(new_script):
    attempts: Dict[str, Dict[str, Any]] = {
        "manual": {"model": Manual},
        "two_networks": {"model": TwoNetworks},
        "own_parameter": {"model": OwnParameter},
        "compiled": {"model": Compiled},
        "bf16": {"precision": "bf16-mixed"},
        "sync_batchnorm": {"sync_batchnorm": True},
        "indivisible": {"batch_size": 5},
        "last_batch": {"batch_size": 9, "parameters": {**PARAMETERS, "microbatches": 9}},
        "remainder": {"accumulate_grad_batches": 4},
        "other_accumulation": {"callbacks": [pl.callbacks.GradientAccumulationScheduler({0: 2, 1: 3})]},
        "second_trainer": {"fitted": True, "accumulate_grad_batches": 2},
        "clip_sharded": {"parameters": {"sharded_data_parallel_degree": 2, "ddp": True}, "gradient_clip_val": 0.1},
        "no_parameters": {"parameters": {}},
        "three_partitions": {"parameters": {"partitions": 3}},
        "no_ddp": {"parameters": {"microbatches": 2}},
    }
    found = {}
    for name, options in attempts.items():
        new_script(options.pop("parameters", PARAMETERS))
        model, size = options.pop("model", SMPModel)(), options.pop("batch_size", 8)
        batches = data(size)
        if options.pop("fitted", False):
            trainer(strategy="smp").fit(model, batches)
        if name == "last_batch":
            batches = torch.utils.data.DataLoader(batches.dataset, batch_size=size)
        try:
            trainer(strategy="smp", **options).fit(model, batches)
        except LightningSMError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
