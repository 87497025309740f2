"""Trains with a logger that has a server, as a script in a training job does.

Arguments: results folder, logger (``mlflow`` or ``wandb``), directory or address.
"""

import json
import sys
from pathlib import Path

import pytorch_lightning as pl

from lightning_sm import trainer_settings
from tests.helpers.tiny import loader, tiny_model


def main(folder, kind, where):
    logger, options = None, {"resume": "never"}
    if kind == "wandb":
        from pytorch_lightning.loggers import WandbLogger

        logger = WandbLogger(save_dir=where)
    else:
        options["mlflow_arn"] = where
    trainer = pl.Trainer(
        **trainer_settings(
            max_epochs=1,
            logger=logger,
            accelerator="cpu",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            sagemaker=options,
        )
    )
    trainer.fit(tiny_model(pl), loader(), loader())
    seen = {"rank": trainer.global_rank, "version": trainer.loggers[-1].version if trainer.global_rank == 0 else None}
    Path(folder, f"rank-{trainer.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
