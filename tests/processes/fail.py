"""Trains until rank 1 fails in some way, while rank 0 waits for it in a collective.

Arguments: results folder, how, devices that Lightning starts on each host (0 where a launcher starts the processes).

``raise``: an exception right after joining. ``kill``: SIGKILL. ``deaf``: as ``raise``, while rank 0 is stuck in
something that never notices, as a collective of NCCL is for half an hour. ``finish``: nobody fails; rank 0 is through
long before rank 1, which then ends as no program should, but as some do.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytorch_lightning as pl

import lightning_sm
from tests.helpers.tiny import loader, tiny_model


class Fails(pl.Callback):
    def __init__(self, folder, how):
        self.folder, self.how = folder, how

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, *unused):
        if batch_idx == 1 and trainer.global_rank == 1 and self.how != "finish":
            if self.how == "kill":
                # Only those who have met it miss it, which takes a moment.
                time.sleep(2)
            Path(self.folder, "failed-at").write_text(str(time.time()))
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            fail()
        if batch_idx == 1 and trainer.global_rank == 0 and self.how == "deaf":
            time.sleep(600)


def fail():
    try:
        {}["layers"]
    except KeyError as error:
        raise RuntimeError(f"no layers, said the owner of {os.environ['MY_API_TOKEN']}") from error


def main(folder, how, devices):
    told = {"devices": int(devices)} if int(devices) else {}
    arguments = lightning_sm.trainer_settings(
        accelerator="cpu",
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Fails(folder, how)],
        **told,
    )
    trainer = pl.Trainer(**arguments)
    trainer.fit(tiny_model(pl), loader())
    if how == "finish" and trainer.global_rank == 1:
        time.sleep(4)
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
