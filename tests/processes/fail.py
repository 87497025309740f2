"""Trains until one rank fails in some way, while the others wait for it in a collective.

Arguments: results folder, how (see ``_fail``), devices that Lightning starts on each host (0 where a launcher does).
``finish`` fails in no way: rank zero is through long before the others.
"""

import os
import signal
import sys
import time

import pytorch_lightning as pl
import torch.distributed as dist

import lightning_sm
from tests.helpers.tiny import loader, tiny_model


class Fails(pl.Callback):
    def __init__(self, how):
        self.how = how

    def setup(self, trainer, pl_module, stage=None):
        if self.how == "early" and trainer.global_rank == 1:
            raise FileNotFoundError("no such channel")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, *unused):
        if batch_idx == 1 and trainer.global_rank == 1:
            # A killed rank is missed by those who have met it, which takes a moment.
            time.sleep(0 if self.how == "raise" else 2)
            _fail(self.how)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *unused):
        # Deaf as a collective of NCCL is: gloo would notice by itself that its peer is gone.
        if batch_idx == 1 and trainer.global_rank == 0 and self.how == "deaf":
            time.sleep(600)


def _fail(how):
    if how in ("raise", "deaf"):
        try:
            {}["layers"]
        except KeyError as error:
            raise RuntimeError(f"no layers, said the owner of {os.environ['MY_API_TOKEN']}") from error
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leave":
        sys.exit(3)


def main(folder, how, devices):
    told = {"devices": int(devices)} if int(devices) else {}
    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            accelerator="cpu",
            strategy="ddp",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Fails(how)],
            **told,
        )
    )
    if how == "deaf":
        tiny = tiny_model(pl)
        tiny.training_step = lambda batch, batch_index: tiny._loss(batch)
    trainer.fit(tiny if how == "deaf" else tiny_model(pl), loader())
    if how == "finish" and dist.get_rank() != 0:
        time.sleep(12)
    if how == "vanish" and dist.get_rank() == 1:
        os._exit(0)
    if how == "vanish":
        time.sleep(12)


if __name__ == "__main__":
    main(*sys.argv[1:])
