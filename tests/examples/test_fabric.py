"""The Fabric example in a job of one process, and restarted."""

import os
import subprocess
import sys

import pytest

from lightning_sm._export import load_file
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT

pytest.importorskip("lightning.fabric", reason="the example uses lightning.fabric")
pytestmark = pytest.mark.full

EXAMPLE = ROOT / "examples" / "fabric" / "train.py"


def test_the_example_trains_and_goes_on_after_a_restart(tmp_path):
    opt_ml = OptMl(tmp_path / "ml").host("algo-1")
    (opt_ml.base / "model").mkdir()
    saved = opt_ml.base / "checkpoints"
    saved.mkdir()
    environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environ.update(opt_ml.environ(TRAINING_JOB_NAME="job-1", SM_NUM_GPUS=0))

    def run():
        command = [sys.executable, str(EXAMPLE), "--epochs", "4"]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        state = load_file(str(opt_ml.base / "model" / "model.pt"), weights_only=True)
        return done.stdout, {name: value.tolist() for name, value in state.items()}

    said, weights = run()
    assert "going on" not in said
    assert float(said.split()[-1]) < 0.5
    assert list((opt_ml.base / "output" / "data").rglob("metrics.csv"))
    for epoch in (2, 3):
        (saved / f"epoch-{epoch}.ckpt").unlink()
    said, again = run()
    assert f"going on with epoch 2 from {saved / 'epoch-1.ckpt'}" in said
    assert again == weights
