"""Step time of a strategy of ours over Lightning's own, two gloo processes each.

Run ``python benchmarks/step_time.py [KIND] [--pairs N]`` with ``ddp`` (the default), ``fsdp``, ``fsdp2``,
``deepspeed_2`` or ``deepspeed_3``. Each run is a fit of 150 steps under torchrun; the median step is compared. FSDP and
DeepSpeed run on CPUs by subclasses that remove Lightning's checks of the device, on both sides."""

import os
import sys
from pathlib import Path

import pytorch_lightning as pl
from _pairs import compare, last_number, parser
from _steps import print_step_time
from _two_processes import launch

import lightning_sm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.sharded import strategy_of

_OURS = {
    "DDPStrategy": lightning_sm.SMDDPStrategy,
    "FSDPStrategy": lightning_sm.SMDDPFSDPStrategy,
    "ModelParallelStrategy": lightning_sm.SMDDPModelParallelStrategy,
    "DeepSpeedStrategy": lightning_sm.SMDDPDeepSpeedStrategy,
}

if __name__ == "__main__":
    if sys.argv[1:2] != ["worker"]:
        words = parser(__doc__)
        kinds = ("ddp", "fsdp", "fsdp2", "deepspeed_2", "deepspeed_3")
        words.add_argument("kind", nargs="?", default="ddp", choices=kinds)
        given = words.parse_args()
        command = [*launch(os.path.abspath(__file__)), "worker", given.kind]
        compare([*command, "ours"], [*command, "theirs"], measure=last_number, unit="s per step", pairs=given.pairs)
    else:
        kind, ours = sys.argv[2], sys.argv[3] == "ours"
        strategy = strategy_of(kind, _OURS, process_group_backend="gloo") if ours else strategy_of(kind, pl.strategies)
        print_step_time(strategy=strategy, enable_checkpointing=False, steps=150)
