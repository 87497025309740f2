"""How long training stands still for a checkpoint of 500 MB with ``async_save``, over a save that it waits for.

Run ``python benchmarks/async_save.py [KIND] [--pairs N]``: one process and one file, or with ``fsdp2`` or ``fsdp`` two
gloo processes and a folder. Each run is a fit that saves six times, through the callback that a job gets; the median
time for which ``save_checkpoint`` holds training up is compared, the first save left out."""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, List

from _pairs import compare, last_number, parser
from _two_processes import end_process_group, launch

_SAVES = 6
_TENSORS, _SIZE = 25, 5_000_000  # 25 tensors of 20 MB


def fit(kind: str, in_background: bool, folder: str) -> None:
    """Train, and print the median seconds that a save took from training on global rank 0.

    Args:
        kind: ``file``, or a kind of strategy.
        in_background: Whether to save with ``async_save``.
        folder: Where to.
    """
    import pytorch_lightning as pl
    import torch
    from project import Data, Model

    from lightning_sm.callbacks import AutoResume

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.helpers.sharded import strategy_of

    class Weights(torch.nn.Module):
        """Weights that no step uses."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(_SIZE), requires_grad=False) for _ in range(_TENSORS)
            )

    class Big(Model):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = Weights()

        def configure_model(self) -> None:
            mesh = getattr(self, "device_mesh", None)
            if mesh is not None:
                torch.distributed.fsdp.fully_shard(self.frozen, mesh=mesh["data_parallel"])
            super().configure_model()

    class Save(pl.Callback):
        def __init__(self, path: str) -> None:
            self.path = path
            self.held_up: List[float] = []

        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            if trainer.strategy.broadcast(in_background and resume.background.is_pending(self.path)):
                return  # a job does not save without a pause either
            before = time.perf_counter()
            trainer.save_checkpoint(self.path)
            self.held_up.append(time.perf_counter() - before)
            trainer.should_stop = len(self.held_up) == _SAVES

    save = Save(os.path.join(folder, "large.ckpt"))
    resume: Any = AutoResume(folder, resume="never", async_save=in_background)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1 if kind == "file" else 2,
        strategy="auto" if kind == "file" else strategy_of(kind, pl.strategies),
        max_steps=1_000_000,
        callbacks=[resume, save],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Big(), Data())
    if trainer.is_global_zero:
        print(statistics.median(save.held_up[1:]), flush=True)
    if kind != "file":
        end_process_group()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        fit(sys.argv[2], sys.argv[3] == "ours", sys.argv[4])
    else:
        words = parser(__doc__)
        words.add_argument("kind", nargs="?", default="file", choices=("file", "fsdp", "fsdp2"))
        given = words.parse_args()
        script = os.path.abspath(__file__)
        program = [*([sys.executable, script] if given.kind == "file" else launch(script)), "worker", given.kind]
        folder = tempfile.mkdtemp()
        try:
            ours, theirs = ([*program, which, folder] for which in ("ours", "theirs"))
            compare(ours, theirs, measure=last_number, unit="s per save", pairs=given.pairs)
        finally:
            shutil.rmtree(folder)
