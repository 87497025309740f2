"""What the lines of progress and metrics, the report and the search for stalls cost of a training step.

Run ``python benchmarks/monitoring_time.py pairs [PROCESSES] [--bar] [--cpu] [--pairs N]``: the median step of a job's
fit with all of it, and of the same fit without it, each a program of its own, in turn; several are gloo processes. The
other fit has no progress bar, or with ``--bar`` the one that Lightning has by default. With ``--cpu`` it is the CPU
time of the thread that trains, which other programs on the machine disturb less. Progress lines are written every
second, thirty times as often as by default.

Run ``python benchmarks/monitoring_time.py blocks [PROCESSES] [--pairs N]`` for the difference within one fit, on global
rank 0, which other programs on the machine disturb less: blocks of steps with these callbacks and without them follow
each other, and the medians of neighbouring blocks are compared. It is the CPU time of the thread that trains."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import pytorch_lightning as pl
import torch
from _pairs import Pairs, compare, last_number, parser
from _two_processes import end_process_group
from project import Data, Model

import lightning_sm

_SCRIPT = os.path.abspath(__file__)
_STEPS = 600
_BLOCK, _SETTLING, _BLOCKS = 60, 5, 120
_CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
_CALLBACKS = ("TrainingMonitor",)


class _Logging(Model):
    """Logs as users do: a metric for the bar and the loggers, and one for the loggers only."""

    def training_step(self, batch: "Tuple[torch.Tensor, torch.Tensor]", batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train/error", loss)
        return loss


class _Clock(pl.Callback):
    """Notes when each step ends. It is the first callback, so that each step holds the hooks of all."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.ends: List[float] = []

    def on_train_batch_end(self, trainer: Any, *args: object) -> None:
        self.ends.append(self.clock())


class _Switch(_Clock):
    """Takes the callbacks out of the trainer for each second block of steps, with what they have attached to it."""

    clock = staticmethod(time.thread_time)

    def __init__(self) -> None:
        super().__init__()
        self.on: List[Any] = []
        self.off: List[Any] = []

    def on_train_batch_end(self, trainer: Any, *args: object) -> None:
        super().on_train_batch_end(trainer, *args)
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


def _settings(kind: str, clock: _Clock, devices: int, **more: Any) -> Dict[str, Any]:
    options: Dict[str, Any] = {"log_every": "1s"} if kind == "with" else {"log_metrics": False, "report": False}
    more["enable_progress_bar"] = kind != "without"
    if devices > 1:
        more["strategy"] = "ddp"
    settings = lightning_sm.trainer_settings(
        sagemaker={**options, "export": False, "resume": "never"},
        accelerator="cpu",
        devices=devices,
        callbacks=[clock, *([pl.callbacks.TQDMProgressBar()] if kind == "bar" else [])],
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
        **more,
    )
    # The clock stands first.
    settings["callbacks"].sort(key=lambda callback: callback is not clock)
    return settings


def job(*words: str) -> None:
    """Run the fit as the only host of a new job."""
    with tempfile.TemporaryDirectory() as base:
        config = os.path.join(base, "input", "config")
        os.makedirs(config)
        host = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        with open(os.path.join(config, "resourceconfig.json"), "w", encoding="utf-8") as file:
            json.dump(host, file)
        start = [sys.executable]
        if words[1] != "1":
            start += ["-m", "torch.distributed.run", "--nproc_per_node", words[1]]
        subprocess.run([*start, _SCRIPT, "worker", *words], env={**os.environ, "SAGEMAKER_BASE_DIR": base}, check=True)


def fit(kind: str, devices: int, measure: str) -> None:
    """Train, and print the median seconds of a step from global rank 0, the first ones left out."""
    clock = _Clock()
    clock.clock = _CLOCKS[measure]
    trainer = pl.Trainer(**_settings(kind, clock, devices, max_steps=_STEPS))
    trainer.fit(_Logging(), Data())
    if trainer.is_global_zero:
        steps = [after - before for before, after in zip(clock.ends[20:], clock.ends[21:])]
        print(statistics.median(steps), flush=True)
    if devices > 1:
        end_process_group()


def blocks(devices: int, count: int) -> None:
    """Train with the callbacks in each second block of steps, and print the difference of a step in microseconds."""
    clock = _Switch()
    trainer = pl.Trainer(**_settings("with", clock, devices, max_steps=_BLOCK * (2 * count + 2)))
    trainer.fit(_Logging(width=16), Data(batch_size=4))
    if devices > 1:
        end_process_group()
    if not trainer.is_global_zero:
        return
    steps = [after - before for before, after in zip(clock.ends, clock.ends[1:])]
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
    if sys.argv[1:3] == ["worker", "job"]:
        job(*sys.argv[3:])
    elif sys.argv[1:3] == ["worker", "blocks"]:
        blocks(*map(int, sys.argv[3:]))
    elif sys.argv[1:2] == ["worker"]:
        fit(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        words = parser(__doc__)
        words.add_argument("way", nargs="?", default="pairs", choices=("pairs", "blocks"))
        words.add_argument("processes", nargs="?", type=int, default=1)
        words.add_argument("--bar", action="store_true", help="with Lightning's progress bar in the other program")
        words.add_argument("--cpu", action="store_true", help="compare CPU time, which other programs disturb less")
        given = words.parse_args()
        if given.way == "blocks":
            job("blocks", str(given.processes), str(given.pairs or _BLOCKS))
        else:
            rest = [str(given.processes), "cpu" if given.cpu else "wall"]
            command, other = [sys.executable, _SCRIPT, "worker", "job"], "bar" if given.bar else "without"
            unit = f"s of {rest[1]} time per step"
            ours, theirs = [*command, "with", *rest], [*command, other, *rest]
            compare(ours, theirs, measure=last_number, unit=unit, pairs=given.pairs)
