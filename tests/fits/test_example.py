"""The example of cross-validation, run as a launcher runs it, killed and restarted."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lightning_sm._export import load_file
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, local_rendezvous

pytest.importorskip("lightning.pytorch", reason="the example uses lightning.pytorch")
pytestmark = pytest.mark.full

FITS = 7
START = ("-m", "torch.distributed.run", "--nproc_per_node=2")


class Example:
    def __init__(self, folder):
        self.base = folder / "ml"
        self.log = folder / "log.txt"
        self.checkpoints = self.base / "checkpoints"
        self.checkpoints.mkdir(parents=True)

    def run(self, until=None):
        """Run it in a fresh container, and kill it as soon as it has written such a file; return the exit code."""
        for gone in ("input", "output", "model"):
            shutil.rmtree(self.base / gone, ignore_errors=True)
        environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        opt_ml = OptMl(self.base).host("algo-1", current_instance_type="local").hyperparameters(save_every="1ms")
        environ.update(opt_ml.environ(TRAINING_JOB_NAME="job-1", SM_NUM_GPUS=0))
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, *START, *local_rendezvous(), str(ROOT / "examples" / "kfold" / "train.py")],
                env=environ,
                cwd=self.base,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if until is not None and any(self.checkpoints.glob(until)):
                    break
                time.sleep(0.005)
        finally:
            self._kill(process)
        return process.wait()

    def _kill(self, process):
        """Torchrun's workers have sessions of their own."""
        inside = str(self.base.resolve())
        for _ in range(2):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            for entry in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if os.readlink(f"/proc/{entry}/cwd") == inside:
                        os.kill(int(entry), signal.SIGKILL)
                except OSError:
                    continue

    @property
    def lines(self):
        """What the program says of its results."""
        lines = self.log.read_text().splitlines()
        return sorted({line for line in lines if line.startswith(("width ", "chosen "))})

    @property
    def weights(self):
        state = load_file(str(self.base / "model" / "model.pt"), weights_only=True)
        return {name: value.tolist() for name, value in state.items()}


def test_the_example_of_cross_validation(tmp_path):
    whole = Example(tmp_path / "whole")
    assert whole.run() == 0, whole.log.read_text()
    assert len(whole.lines) == 3
    killed = Example(tmp_path / "killed")
    # At the end of the fourth fit: later ones have not begun.
    assert killed.run("**/fit-3/fit.json") != 0, "it ended before it was killed"
    assert killed.run() == 0, killed.log.read_text()
    assert killed.lines == whole.lines
    assert killed.weights == whole.weights
    assert len(list(killed.checkpoints.glob("**/fit-*/fit.json"))) == FITS
