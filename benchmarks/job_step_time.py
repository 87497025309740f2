"""Step time of a training job with all that a job gets, over Lightning alone, two gloo processes each.

Run ``python benchmarks/job_step_time.py``. Each run is a fit of 400 steps under torchrun; the median step is compared.
Ours has a job's files and so what a job gets: its environment, saves to resume from, handling of SIGTERM, failure
monitoring and the export.
"""

import json
import os
import subprocess
import sys
import tempfile

from _pairs import compare, last_number
from _steps import launch, print_step_time

import lightning_sm

_COMMAND = launch(os.path.abspath(__file__))


def job() -> None:
    """Run the fit as the only host of a new job."""
    with tempfile.TemporaryDirectory() as base:
        config = os.path.join(base, "input", "config")
        os.makedirs(config)
        host = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        with open(os.path.join(config, "resourceconfig.json"), "w", encoding="utf-8") as file:
            json.dump(host, file)
        subprocess.run([*_COMMAND, "ours"], env={**os.environ, "SAGEMAKER_BASE_DIR": base}, check=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        ours = [sys.executable, os.path.abspath(__file__), "job"]
        compare(ours, [*_COMMAND, "theirs"], measure=last_number, runs=9, unit="s per step")
    elif sys.argv[1] == "job":
        job()
    elif sys.argv[1] == "ours":
        print_step_time(lightning_sm.trainer_settings, strategy="ddp")
    else:
        print_step_time(strategy="ddp", enable_checkpointing=False)
