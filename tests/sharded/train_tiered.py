"""Trains in parts that save to a memory tier at a local server and resume from there.

Arguments: results folder, checkpoint directory, kind of strategy, port of the server, the step after which it is lost
(0 for none), name of the training.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from amzn_sagemaker_checkpointing.config.in_memory_client import InMemoryClientConfig

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import AutoResume, DataPosition, SafeSaves, TieredCheckpoints
from tests.helpers.sharded import cpu_strategy, sharded_model
from tests.helpers.tiny import loader

NAMESPACE = installed_namespaces()[0]
pl = NAMESPACE.module()


class Stop(pl.Callback):
    """Ends the program without a further checkpoint, as a lost host does."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        time.sleep(0.4)  # ranks ask each other a few times a second
        if trainer.global_step == self.step:
            trainer.strategy.barrier()
            os._exit(0)


def main(folder, directory, kind, port, stop_at, namespace):
    # The library has no setting for the address of its service.
    defaults = InMemoryClientConfig.__init__.__defaults__
    InMemoryClientConfig.__init__.__defaults__ = (f"http://127.0.0.1:{port}", 5.0, *defaults[2:])
    lightning_sm.job()
    callbacks = [
        TieredCheckpoints(namespace, interval="1us"),
        AutoResume(directory),
        SafeSaves(),
        DataPosition(),
        pl.callbacks.ModelCheckpoint(directory, every_n_train_steps=3, save_top_k=-1),
    ]
    callbacks.append(Stop(int(stop_at)))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=cpu_strategy(kind, pl.strategies),
        max_epochs=2,
        logger=False,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    pl.seed_everything(3)
    model = sharded_model(pl)
    trainer.fit(model, loader())
    found = {
        "resumed_from": callbacks[1].resumed_from,
        "steps": trainer.global_step,
        "sums": [float(_local(parameter).double().sum()) for parameter in model.parameters()],
    }
    Path(folder, f"rank-{trainer.global_rank}.json").write_text(json.dumps(found))


def _local(parameter):
    return parameter.to_local().detach() if hasattr(parameter, "to_local") else parameter.detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
