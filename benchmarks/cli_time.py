"""Wall time of ``python -m lightning_sm.cli fit`` over the same project under ``LightningCLI``.

Run ``python benchmarks/cli_time.py``.
"""

import os
import sys

from _pairs import compare, wall_seconds

_THEIRS = "from pytorch_lightning.cli import LightningCLI; LightningCLI()"

if __name__ == "__main__":
    fit = ["fit", "--config", os.path.join(os.path.dirname(os.path.abspath(__file__)), "project.yaml")]
    theirs = [sys.executable, "-c", _THEIRS, *fit]
    compare([sys.executable, "-m", "lightning_sm.cli", *fit], theirs, measure=wall_seconds, runs=9, unit="s")
