"""Step time of a training job with all that a job gets, over Lightning alone, two gloo processes each.

Run ``python benchmarks/job_step_time.py [--pairs N]``. Each run is a fit of 400 steps under torchrun; the median step
is compared. Ours has a job's files and so what a job gets: its environment, saves to resume from, handling of SIGTERM,
failure monitoring, progress lines, the report and the export. Neither has a ``ModelCheckpoint`` of the project or a
progress bar."""

import json
import os
import subprocess
import sys
import tempfile

from _pairs import compare, last_number, parser
from _steps import print_step_time
from _two_processes import launch

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
        subprocess.run([*_COMMAND, "worker", "ours"], env={**os.environ, "SAGEMAKER_BASE_DIR": base}, check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker", "job"]:
        job()
    elif sys.argv[1:2] == ["worker"]:
        complete = lightning_sm.trainer_settings if sys.argv[2] == "ours" else dict
        print_step_time(complete, strategy="ddp", enable_checkpointing=False)
    else:
        given = parser(__doc__).parse_args()
        ours, theirs = [sys.executable, os.path.abspath(__file__), "worker", "job"], [*_COMMAND, "worker", "theirs"]
        compare(ours, theirs, measure=last_number, unit="s per step", pairs=given.pairs)
