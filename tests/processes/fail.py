"""Trains until rank 1 fails while rank 0 waits for it in a collective.

``--how`` selects the failure, and ``--devices`` the number of processes per host where Lightning starts them:

``raise``: an exception after joining the process group. ``exit``: ``sys.exit`` with a message. ``kill``: SIGKILL.
``crash``: abort, as gloo does. ``blocked``: as ``raise``, while rank 0 is blocked in a call that does not notice the
loss, as a collective of NCCL is for half an hour. ``model``: an exception before the first call of this package.
``uploads``: as ``raise``, and rank 0, which loses the other one, catches its error and works for 8 seconds. ``main``:
rank 0 is killed as soon as all have joined. ``finish``: no failure; rank 0 ends seconds before rank 1, which then
leaves by ``os._exit``.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import pytorch_lightning as pl

import lightning_sm
from lightning_sm._failure.process import current_monitor

try:
    from tests.helpers.tiny import loader, tiny_model
except ImportError:  # in a rehearsal's source directory
    from tiny import loader, tiny_model


class Fails(pl.Callback):
    def __init__(self, folder, how):
        self.folder, self.how = folder, how

    def on_train_start(self, trainer, pl_module):
        if self.how == "main" and trainer.global_rank == 0:
            note(self.folder)
            fail("kill")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, *unused):
        if batch_idx == 1 and trainer.global_rank == 1 and self.how not in ("finish", "main"):
            if self.how in ("kill", "crash"):
                # Only ranks that have connected to it notice its loss.
                time.sleep(2)
            note(self.folder)
            fail(self.how)
        if batch_idx == 1 and trainer.global_rank == 0 and self.how == "blocked":
            time.sleep(600)


def note(folder):
    if folder is not None:
        Path(folder, "failed-at").write_text(str(time.time()))


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crash":
        sys.stderr.write("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n")
        sys.stderr.flush()
        os.abort()
    if how == "exit":
        sys.exit("no data for this rank")
    try:
        {}["layers"]
    except KeyError as error:
        raise RuntimeError(f"no layers, said the owner of {os.environ['MY_API_TOKEN']}") from error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", help="where to write when rank 1 failed")
    parser.add_argument("--how")
    parser.add_argument("--devices", type=int)
    options = parser.parse_args()
    # From this line on the toolkit copies the log into its failure reason.
    print("a ValueError, which is only spoken of", flush=True)
    if options.how == "model" and not lightning_sm.Topology.resolve().is_rank_zero:
        note(options.folder)
        fail("raise")
    if options.how in ("blocked", "uploads"):
        # The time that a rank has to end by itself, which is 15 seconds.
        vars(current_monitor())["_exit_timeout"] = 4.0
    told = {"devices": options.devices} if options.devices else {}
    arguments = lightning_sm.trainer_settings(
        accelerator=os.environ.get("TESTS_ACCELERATOR", "cpu"),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Fails(options.folder, options.how)],
        **told,
    )
    trainer = pl.Trainer(**arguments)
    try:
        trainer.fit(tiny_model(pl), loader())
    except Exception:
        if options.how == "uploads" and trainer.global_rank == 0:
            time.sleep(8)
            Path(options.folder, "uploaded").touch()
        raise
    if options.how == "finish" and trainer.global_rank == 1:
        time.sleep(4)
        os._exit(0)


if __name__ == "__main__":
    main()
