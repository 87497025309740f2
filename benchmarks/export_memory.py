"""Peak host memory of an export from two processes of a sharded strategy, as a multiple of the model's size of 320 MB.

Run ``python benchmarks/export_memory.py [KIND] [FORMAT] [--pairs N]``. Each measurement is a launch of its own, on
gloo: ``ModelExport``, from gathering to the comparison of what was written, and what Lightning offers instead, which is
one file of ``save_checkpoint`` with FSDP2, and ``convert_zero_checkpoint_to_fp32_state_dict`` with DeepSpeed's stage 3.
The peak is of anonymous memory (``RssAnon``), sampled each millisecond, over that before the export. glibc is told to
return what is freed, as it otherwise keeps some of it, up to its own thresholds, which do not grow with the model."""

import ctypes
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from _pairs import compare, last_number, parser
from _two_processes import end_process_group, launch

_ROOT = str(Path(__file__).resolve().parent.parent)
_COUNT, _WIDTH = 20, 2000  # 20 parameters of 16 MB


class Peak:
    """The most memory that this process had within the context, over that before it, in bytes."""

    def __enter__(self) -> "Peak":
        # What training freed and the allocator kept would be used again, and not be counted.
        ctypes.CDLL(None).malloc_trim(0)
        self._before = self._most = _anonymous_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._most = max(self._most, _anonymous_bytes())
            time.sleep(0.001)

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()
        self._most = max(self._most, _anonymous_bytes())

    @property
    def bytes(self) -> int:
        """The difference."""
        return self._most - self._before


def _anonymous_bytes() -> int:
    """The memory of this process that is no mapped file."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def worker(kind: str, how: str, folder: str) -> None:
    """Train a step in this rank, export, and print the peak of global rank 0 as a multiple of the model's size.

    Args:
        kind: A key of ``KINDS`` in ``tests/helpers/sharded.py``.
        how: A format of ``sagemaker.export``, or ``lightning``.
        folder: Where to write.
    """
    sys.path.insert(0, _ROOT)
    import pytorch_lightning as pl
    import torch
    from torch.utils.data import DataLoader

    from lightning_sm.callbacks import ModelExport
    from tests.helpers.sharded import shard, strategy_of

    class Big(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_COUNT)))

        def configure_model(self) -> None:
            shard(self, self.parts)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.parts(torch.ones(1, _WIDTH)).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Measure(pl.Callback):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            with Peak() as peak:
                if how == "lightning":
                    saved = os.path.join(folder, "saved.ckpt")
                    trainer.save_checkpoint(saved, weights_only=not kind.startswith("deepspeed"))
                    if kind.startswith("deepspeed") and trainer.is_global_zero:
                        from pytorch_lightning.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict

                        convert_zero_checkpoint_to_fp32_state_dict(saved, os.path.join(folder, "model.pt"))
                else:
                    export = ModelExport(folder, export=how, export_weights="last")
                    export.export_now(trainer, module)
            if trainer.is_global_zero:
                print(peak.bytes / (4 * _COUNT * _WIDTH**2), flush=True)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy_of(kind, pl.strategies),
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Measure()],
    )
    trainer.fit(Big(), DataLoader([0] * 2))  # type: ignore[arg-type]
    end_process_group()


def main() -> None:
    """Compare the peaks of global rank 0."""
    words = parser(__doc__)
    words.add_argument("kind", nargs="?", default="fsdp2", choices=("fsdp2", "deepspeed_3"))
    words.add_argument("format", nargs="?", default="state_dict", choices=("state_dict", "safetensors"))
    given = words.parse_args()
    # glibc returns what is freed.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    theirs = "fsdp2_full" if given.kind == "fsdp2" else given.kind
    with tempfile.TemporaryDirectory() as folder:
        program = [*launch(os.path.abspath(__file__)), "worker"]
        ours = [*program, given.kind, given.format, os.path.join(folder, "ours")]
        lightnings = [*program, theirs, "lightning", os.path.join(folder, "theirs")]
        compare(ours, lightnings, measure=last_number, unit="times the model's size", pairs=given.pairs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        main()
