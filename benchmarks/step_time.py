"""Step time of ``SMDDPStrategy`` over Lightning's ``DDPStrategy``, two gloo processes each.

Run ``python benchmarks/step_time.py``. Each run is a fit of 400 steps under torchrun; the median step is compared.
"""

import os
import sys

import pytorch_lightning as pl
from _pairs import compare, last_number
from _steps import launch, print_step_time

import lightning_sm

if __name__ == "__main__":
    if not sys.argv[1:]:
        command = launch(os.path.abspath(__file__))
        compare([*command, "ours"], [*command, "theirs"], measure=last_number, runs=9, unit="s per step")
    elif sys.argv[1] == "ours":
        strategy = lightning_sm.SMDDPStrategy(process_group_backend="gloo")
        print_step_time(strategy=strategy, enable_checkpointing=False)
    else:
        print_step_time(strategy=pl.strategies.DDPStrategy(), enable_checkpointing=False)
