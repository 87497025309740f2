"""Step time of a training job with all that watches over it, over Lightning alone, two gloo processes each.

Run ``python benchmarks/job_step_time.py``. Each run is a fit of 400 steps under torchrun; the median step is compared.
Ours has a job's files and so what a job gets: its environment, checkpoints, the position in the data, the ear for
SIGTERM, the watch over failures and the export.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import pytorch_lightning as pl
from _pairs import compare, last_number
from step_time import STEPS, Clock, print_median

import lightning_sm

_LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", os.path.abspath(__file__)]


def fit(ours: bool) -> None:
    """Train and print the median seconds of a step, from global rank 0."""
    import torch.distributed
    from project import Data, Model

    clock = Clock()
    arguments = {
        "strategy": "ddp",
        "accelerator": "cpu",
        "devices": 2,
        "max_steps": STEPS,
        "callbacks": [clock],
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    if ours:
        trainer = pl.Trainer(**lightning_sm.trainer_settings(**arguments))
    else:
        trainer = pl.Trainer(**arguments, enable_checkpointing=False)
    trainer.fit(Model(), Data())
    if trainer.is_global_zero:
        print_median(clock)
    if torch.distributed.is_initialized():
        time.sleep(0.2)  # gloo's threads must be through
        torch.distributed.destroy_process_group()


def job() -> None:
    """Run the fit as the only host of a new job."""
    with tempfile.TemporaryDirectory() as base:
        config = os.path.join(base, "input", "config")
        os.makedirs(config)
        host = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        with open(os.path.join(config, "resourceconfig.json"), "w", encoding="utf-8") as file:
            json.dump(host, file)
        subprocess.run([*_LAUNCH, "ours"], env={**os.environ, "SAGEMAKER_BASE_DIR": base}, check=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        ours = [sys.executable, os.path.abspath(__file__), "job"]
        compare(ours, [*_LAUNCH, "theirs"], measure=last_number, runs=9, unit="s per step")
    elif sys.argv[1] == "job":
        job()
    else:
        fit(sys.argv[1] == "ours")
