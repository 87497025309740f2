"""Step time of a strategy of ours over Lightning's own, two gloo processes each.

Run ``python benchmarks/step_time.py [KIND]`` with ``ddp`` (the default), ``fsdp``, ``fsdp2``, ``deepspeed_2`` or
``deepspeed_3``. Each run is a fit of 150 steps under torchrun; the median step is compared. FSDP and DeepSpeed run on
CPUs by subclasses that remove Lightning's checks of the device, on both sides.
"""

import os
import sys
from pathlib import Path

import pytorch_lightning as pl
from _pairs import compare, last_number
from _steps import launch, print_step_time

import lightning_sm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.sharded import cpu_strategy

_OURS = {
    "DDPStrategy": lightning_sm.SMDDPStrategy,
    "FSDPStrategy": lightning_sm.SMDDPFSDPStrategy,
    "ModelParallelStrategy": lightning_sm.SMDDPModelParallelStrategy,
    "DeepSpeedStrategy": lightning_sm.SMDDPDeepSpeedStrategy,
}

if __name__ == "__main__":
    kind = sys.argv[1] if sys.argv[1:] else "ddp"
    if not sys.argv[2:]:
        command = [*launch(os.path.abspath(__file__)), kind]
        compare([*command, "ours"], [*command, "theirs"], measure=last_number, runs=9, unit="s per step")
    else:
        ours = sys.argv[2] == "ours"
        strategy = (
            cpu_strategy(kind, _OURS, process_group_backend="gloo") if ours else cpu_strategy(kind, pl.strategies)
        )
        print_step_time(strategy=strategy, enable_checkpointing=False, steps=150)
