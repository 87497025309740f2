"""Step time of ``SMDDPStrategy`` over Lightning's ``DDPStrategy``, two gloo processes each.

Run ``python benchmarks/step_time.py``. Each run is a fit of 400 steps under torchrun; the median step is compared.
"""

import os
import statistics
import sys
import time

import pytorch_lightning as pl
from _pairs import compare, last_number

STEPS = 400


class Clock(pl.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends = []

    def on_train_batch_end(self, *args: object) -> None:
        self.ends.append(time.perf_counter())


def print_median(clock: Clock) -> None:
    """Print the median seconds of a step, the first ones left out."""
    steps = [after - before for before, after in zip(clock.ends[20:], clock.ends[21:])]
    print(statistics.median(steps), flush=True)


def fit(ours: bool) -> None:
    """Train and print the median seconds of a step, from global rank 0."""
    import torch.distributed
    from project import Data, Model

    import lightning_sm

    clock = Clock()
    strategy = lightning_sm.SMDDPStrategy(process_group_backend="gloo") if ours else pl.strategies.DDPStrategy()
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), Data())
    if trainer.is_global_zero:
        print_median(clock)
    # Without it a finished gloo job aborts now and then: Lightning ends NCCL's groups only.
    time.sleep(0.2)  # gloo's threads must be through
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:]:
        fit(sys.argv[1] == "ours")
    else:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", os.path.abspath(__file__)]
        compare([*launch, "ours"], [*launch, "theirs"], measure=last_number, runs=9, unit="s per step")
