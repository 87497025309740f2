"""The program of the rehearsals with sharded strategies: trains with each kind, each in directories of its own."""

import argparse
import json
import os
import time

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.helpers.sharded import sharded_model, strategy_of
from tests.helpers.tiny import loader


class Seen(pl.Callback):
    """Where the training began, and a line for each step."""

    def __init__(self, kind, waits):
        self.kind, self.waits, self.start = kind, waits, None

    def on_train_start(self, trainer, *_):
        self.start = trainer.global_step

    def on_train_batch_end(self, trainer, *_):
        if self.waits:
            print(f"{self.kind} has done step {trainer.global_step}", flush=True)
            time.sleep(1)


def train(kind, epochs, waits):
    job_dirs = {"checkpoint_dir": f"/opt/ml/checkpoints/{kind}", "model_dir": f"{os.environ['SM_MODEL_DIR']}/{kind}"}
    # For two hosts of one process each, where no launcher sets WORLD_SIZE.
    arguments = {"data_parallel_size": 2} if kind.startswith("fsdp2") else {}
    strategy, seen = strategy_of(kind, pl.strategies, **arguments), Seen(kind, waits)
    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            sagemaker={**job_dirs, "save_every": "2s", "report": False},
            accelerator="cpu",
            strategy=strategy,
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[seen],
        )
    )
    trainer.fit(sharded_model(pl), loader())
    return {"start": seen.start, "steps": trainer.global_step}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", help="with commas")
    parser.add_argument("--waiting", help="the kind in whose training this process waits to be stopped")
    options = parser.parse_args()
    kinds, epochs = options.kinds.split(","), int(os.environ["EPOCHS"])
    found = {kind: train(kind, epochs, kind == options.waiting) for kind in kinds}
    rank = torch.distributed.get_rank()
    with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
