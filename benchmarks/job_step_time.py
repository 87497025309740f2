"""Step time of a training job with all that a job gets, over Lightning alone, two gloo processes each.

Run ``python benchmarks/job_step_time.py [--pairs N]``. Each run is a fit of 400 steps under torchrun; the median step
is compared. Ours has a job's files and so what a job gets: its environment, saves to resume from, handling of SIGTERM,
failure monitoring, progress lines, the report and the export. Neither has a ``ModelCheckpoint`` of the project or a
progress bar."""

import os
import sys

from _pairs import compare, last_number, parser
from _steps import print_step_time
from _two_processes import launch, run_as_job

import lightning_sm

_COMMAND = launch(os.path.abspath(__file__))


if __name__ == "__main__":
    if sys.argv[1:] == ["worker", "job"]:
        run_as_job([*_COMMAND, "worker", "ours"])
    elif sys.argv[1:2] == ["worker"]:
        complete = lightning_sm.trainer_settings if sys.argv[2] == "ours" else dict
        print_step_time(complete, strategy="ddp", enable_checkpointing=False)
    else:
        given = parser(__doc__).parse_args()
        ours, theirs = [sys.executable, os.path.abspath(__file__), "worker", "job"], [*_COMMAND, "worker", "theirs"]
        compare(ours, theirs, measure=last_number, unit="s per step", pairs=given.pairs)
