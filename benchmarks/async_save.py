"""How long training stands still for a checkpoint of 500 MB with ``async_save``, over a save that it waits for.

Run ``python benchmarks/async_save.py``. Each run is a fit that saves six times, through the callback that a job gets;
the median time for which ``save_checkpoint`` holds training up is compared, the first save left out.
"""

import os
import statistics
import sys
import tempfile
import time
from typing import Any, List

from _pairs import compare, last_number

_SAVES = 6
_TENSORS, _SIZE = 25, 5_000_000  # 25 tensors of 20 MB


def fit(in_background: bool) -> None:
    """Train and print the median seconds that a save took from training."""
    import pytorch_lightning as pl
    import torch
    from project import Data, Model

    from lightning_sm.callbacks import SafeSaves

    class Big(Model):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(_SIZE), requires_grad=False) for _ in range(_TENSORS)
            )

    class Save(pl.Callback):
        def __init__(self, path: str) -> None:
            self.path = path
            self.held_up: List[float] = []

        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            checkpoint_io: Any = trainer.strategy.checkpoint_io
            if in_background and checkpoint_io.is_pending(self.path):
                return  # a job does not save without a pause either
            before = time.perf_counter()
            trainer.save_checkpoint(self.path)
            self.held_up.append(time.perf_counter() - before)
            trainer.should_stop = len(self.held_up) == _SAVES

    with tempfile.TemporaryDirectory() as folder:
        save = Save(os.path.join(folder, "last.ckpt"))
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=-1,
            callbacks=[SafeSaves(async_save=in_background), save],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Big(), Data())
        print(statistics.median(save.held_up[1:]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        fit(sys.argv[1] == "ours")
    else:
        program = [sys.executable, os.path.abspath(__file__)]
        compare([*program, "ours"], [*program, "theirs"], measure=last_number, runs=5, unit="s per save")
