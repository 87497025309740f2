"""Trains with each kind of strategy and exports the model in several formats, from the last and the best weights.

Arguments: results folder, kinds with commas. Each kind is a fit of its own in the same two processes.
"""

from pathlib import Path

import pytorch_lightning as pl

import lightning_sm.callbacks
from tests.helpers.accelerator import ranks
from tests.helpers.sharded import strategy_of
from tests.helpers.tiny import loader
from tests.projects.sharded_nets import Parts, Tied

# Before torch 2.6 a program does not hold the buffer that a layer counts in.
GRAPHS = ("torchscript", "exported_program")


def train(folder, name, kind, model, formats, **arguments):
    pl.seed_everything(3)
    exports = [
        lightning_sm.callbacks.ModelExport(
            str(folder / name / f"{weights}-{each}"),
            export=each,
            export_weights=weights,
            export_example_input=[1, 4] if each in GRAPHS else None,
        )
        for weights in ("last", "best")
        for each in formats
    ]
    # Saved after each epoch, and the first is the best: the two exports differ.
    saves = pl.callbacks.ModelCheckpoint(
        folder / name / "checkpoints", filename="{epoch}", monitor="val_loss", mode="max", save_top_k=1
    )
    trainer = pl.Trainer(
        **ranks(2),
        strategy=strategy_of(kind, pl.strategies, **arguments),
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*exports, saves],
    )
    trainer.fit(model, loader(), loader())


def main(folder, kinds):
    for kind in kinds.split(","):
        # A graph is made of a new model with the whole weights, whatever had sharded them.
        graphs = GRAPHS if kind == "fsdp" else ()
        train(Path(folder), kind, kind, Parts(), ("state_dict", "checkpoint", *graphs))
        arguments = {"auto_wrap_policy": None} if kind in ("fsdp", "fsdp_full") else {}
        train(Path(folder), f"{kind}-tied", kind, Tied(), ("state_dict", "safetensors"), **arguments)
