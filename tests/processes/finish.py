"""A job over gloo that ends as any job does: a short fit, and then the end of the program.

Arguments: results folder, way (``ours``, or ``bare`` for Lightning without us, to see what happens there).
"""

import json
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch.distributed as dist

from tests.helpers.tiny import loader, tiny_model


def main(folder, way):
    if way == "ours":
        import lightning_sm

        arguments = {"strategy": lightning_sm.SMDDPStrategy()}
    else:
        arguments = {"strategy": "ddp", "devices": 2}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(tiny_model(pl), loader(), loader())
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(dist.is_initialized()))


if __name__ == "__main__":
    main(*sys.argv[1:])
