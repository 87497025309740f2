"""The example of cross-validation, run as a launcher runs it, killed and restarted."""

import contextlib
import os
import signal

import pytest

from lightning_sm._export import load_file
from tests.helpers.processes import ROOT, local_rendezvous, marked
from tests.helpers.program import Program

pytest.importorskip("lightning.pytorch", reason="the example uses lightning.pytorch")
pytestmark = pytest.mark.full

FITS = 7


class Example(Program):
    def __init__(self, folder):
        folder.mkdir()
        script = ROOT / "examples" / "kfold" / "train.py"
        super().__init__(folder, script, hyperparameters={"save_every": "1ms"}, TESTS_JOB=folder)

    def end(self, until=None):
        """Run it to its end, or kill it as soon as it has written such a file; return the exit code."""
        self.start(launcher=("-m", "torch.distributed.run", "--nproc_per_node=2", *local_rendezvous()))
        try:
            if until is None:
                self.process.wait(120)
            else:
                self.until(lambda: any(self.folder.glob(until)))
        finally:
            # Torchrun's workers have sessions of their own.
            for pid, _ in marked(f"TESTS_JOB={self.folder}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return self.process.wait()

    @property
    def lines(self):
        """What the program says of its results."""
        return sorted({line for line in self.output.splitlines() if line.startswith(("width ", "chosen "))})

    @property
    def weights(self):
        state = load_file(str(self.folder / "model" / "model.pt"), weights_only=True)
        return {name: value.tolist() for name, value in state.items()}


def test_the_example_of_cross_validation(tmp_path):
    whole = Example(tmp_path / "whole")
    assert whole.end() == 0, whole.output
    assert len(whole.lines) == 3
    killed = Example(tmp_path / "killed")
    # At the end of the fourth fit: later ones have not begun.
    assert killed.end("checkpoints/**/fit-3/fit.json") != 0, "it ended before it was killed"
    assert killed.end() == 0, killed.output
    assert killed.lines == whole.lines
    assert killed.weights == whole.weights
    assert len(list(killed.folder.glob("checkpoints/**/fit-*/fit.json"))) == FITS
