"""Trains with ``sagemaker.doctor: true``, in a job in which one host may have a trap (``--trap HOST``).

``--other-files HOST`` makes a channel of which that host has another file.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import pytorch_lightning as pl

import lightning_sm

try:
    from tests.helpers.tiny import loader, tiny_model
except ImportError:  # in a rehearsal's source directory
    from tiny import loader, tiny_model


def write_channel(names):
    """Make a channel that SageMaker would have copied to this host before any of its processes starts."""
    base = Path(os.environ["SAGEMAKER_BASE_DIR"], "input")
    written = base / "written"
    if os.environ.get("LOCAL_RANK", "0") != "0":
        while not written.exists():
            time.sleep(0.05)
        return
    channel = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}
    Path(base, "config", "inputdataconfig.json").write_text(json.dumps({"training": channel}))
    Path(base, "data", "training").mkdir(parents=True)
    for name in names:
        Path(base, "data", "training", name).write_text(name)
    written.touch()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", help="for results, of which there are none")
    parser.add_argument("--trap")
    parser.add_argument("--other-files")
    given = parser.parse_args()
    current = lightning_sm.TrainingJob.resolve().current_host
    if given.other_files is not None:
        write_channel(["a.txt", "b.txt"] if current == given.other_files else ["a.txt"])
    if current == given.trap:
        os.environ["SM_MODEL_DIR"] = sys.executable  # a file
    arguments = lightning_sm.trainer_settings(
        sagemaker={"doctor": True}, accelerator="cpu", max_steps=2, enable_progress_bar=False
    )
    pl.Trainer(**arguments).fit(tiny_model(pl), loader())


if __name__ == "__main__":
    main()
