"""What the lines of progress and metrics, the report and the search for stalls cost of a training step.

Run ``python benchmarks/monitoring_time.py [PROCESSES] [--pairs N]``; several are gloo processes. Within one fit of a
job, blocks of steps with these callbacks and without them follow each other, and the medians of neighbouring blocks
are compared, on global rank 0. It is the CPU time of the thread that trains, which other programs on the machine
disturb less. Progress lines are written every second, thirty times as often as by default."""

import json
import os
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import pytorch_lightning as pl
import torch
from _pairs import Pairs, parser
from _two_processes import end_process_group, run_as_job
from project import Data, Model

import lightning_sm

_SCRIPT = os.path.abspath(__file__)
_BLOCK, _SETTLING, _BLOCKS = 60, 5, 120
_CALLBACKS = ("TrainingMonitor",)


class _Logging(Model):
    """Logs as users do: a metric for the bar and the loggers, and one for the loggers only."""

    def training_step(self, batch: "Tuple[torch.Tensor, torch.Tensor]", batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train/error", loss)
        return loss


class _Switch(pl.Callback):
    """Notes when each step ends, and takes the measured callbacks and what they attached away in every second block.

    It is the first callback, so that each step holds the hooks of all.
    """

    def __init__(self) -> None:
        self.ends: List[float] = []
        self.on: List[Any] = []
        self.off: List[Any] = []

    def on_train_batch_end(self, trainer: Any, *args: object) -> None:
        self.ends.append(time.thread_time())
        if not self.on:
            self.on = trainer.callbacks
            self.off = [each for each in self.on if type(each).__name__ not in _CALLBACKS]
            names = sorted(type(each).__name__ for each in self.on if each not in self.off)
            print(f"measured: {', '.join(names)}", file=sys.stderr)
        if len(self.ends) % _BLOCK == 0:
            if len(self.ends) % (20 * _BLOCK) == 0 and trainer.is_global_zero:
                print(f"step {len(self.ends)} of {trainer.max_steps}", file=sys.stderr, flush=True)
            is_on = len(self.ends) // _BLOCK % 2 == 0
            trainer.callbacks = self.on if is_on else self.off
            for callback in (each for each in self.on if each not in self.off):
                if is_on:
                    callback.setup(trainer, trainer.lightning_module, "fit")
                    callback.on_train_start(trainer, trainer.lightning_module)
                else:
                    callback._detach()


def _settings(switch: _Switch, devices: int, steps: int) -> Dict[str, Any]:
    strategy: Dict[str, Any] = {"strategy": "ddp"} if devices > 1 else {}
    settings = lightning_sm.trainer_settings(
        sagemaker={"log_every": "1s", "export": False, "resume": "never"},
        accelerator="cpu",
        devices=devices,
        callbacks=[switch],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=True,
        logger=False,
        max_steps=steps,
        **strategy,
    )
    settings["callbacks"].sort(key=lambda callback: callback is not switch)
    return settings


def blocks(devices: int, count: int) -> None:
    """Train with the callbacks in each second block of steps, and print the difference of a step in microseconds."""
    switch = _Switch()
    trainer = pl.Trainer(**_settings(switch, devices, _BLOCK * (2 * count + 2)))
    trainer.fit(_Logging(width=16), Data(batch_size=4))
    if devices > 1:
        end_process_group()
    if not trainer.is_global_zero:
        return
    steps = [after - before for before, after in zip(switch.ends, switch.ends[1:])]
    # The steps right behind a change are not counted, nor is the first block.
    medians = [
        statistics.median(steps[start + _SETTLING : start + _BLOCK - 1]) for start in range(0, len(steps), _BLOCK)
    ][1 : 2 * count + 1]
    pairs = Pairs(
        "us of CPU time per step", tuple((1e6 * on, 1e6 * off) for off, on in zip(medians[::2], medians[1::2]))
    )
    low, middle, high = statistics.quantiles([on - off for on, off in pairs.values], n=4)
    quartiles = [round(low, 1), round(high, 1)]
    print(
        json.dumps(
            {**pairs.to_json(), "difference_quartiles": quartiles, "share_of_5_ms": round(middle / 5000, 4)}, indent=2
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        blocks(*map(int, sys.argv[2:]))
    else:
        words = parser(__doc__)
        words.add_argument("processes", nargs="?", type=int, default=1)
        given = words.parse_args()
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(given.processes)]
        program = [*(start if given.processes > 1 else start[:1]), _SCRIPT, "worker"]
        run_as_job([*program, str(given.processes), str(given.pairs or _BLOCKS)])
