"""The Fabric example in a job of one process, and restarted."""

import pytest

from lightning_sm._export import load_file
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, run_python

pytest.importorskip("lightning.fabric", reason="the example uses lightning.fabric")
pytestmark = pytest.mark.full

EXAMPLE = ROOT / "examples" / "fabric" / "train.py"


def test_the_example_trains_and_goes_on_after_a_restart(tmp_path):
    opt_ml = OptMl(tmp_path / "ml").host("algo-1")
    (opt_ml.base / "model").mkdir()
    saved = opt_ml.base / "checkpoints"
    saved.mkdir()
    variables = opt_ml.environ(TRAINING_JOB_NAME="job-1", SM_NUM_GPUS=0)

    def run():
        done = run_python(EXAMPLE, "--epochs", 4, folder=tmp_path, **variables)
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
