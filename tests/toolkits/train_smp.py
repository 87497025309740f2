"""Trains by AWS's model parallel library 1.x, for which a stand-in lies in the source directory beside ``smp.py``."""

import json
import os
import socket
from pathlib import Path

import pytorch_lightning as pl
from smp import SMPModel, data, flat

import lightning_sm


def main():
    settings = {"accelerator": "cpu", "strategy": "smp", "max_epochs": 2, "gradient_clip_val": 0.05, "logger": False}
    trainer = pl.Trainer(**lightning_sm.trainer_settings(enable_progress_bar=False, **settings))
    model, batches = SMPModel(), data(8)
    trainer.fit(model, batches, batches)
    seen = {
        "weights": flat(trainer.strategy.lightning_module_state_dict()),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "world": [trainer.global_rank, trainer.world_size, type(trainer.strategy).__name__],
    }
    # Under mpirun, SM_CURRENT_HOST is the first host everywhere.
    name = f"{socket.gethostname()}-{trainer.global_rank}.json"
    Path(os.environ["SM_OUTPUT_DATA_DIR"], name).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
