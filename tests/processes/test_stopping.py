"""Real signals to real processes. ``tests/resume/test_graceful_stop.py`` has the rest, within one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_sm._export import load_file
from lightning_sm._lightning import installed_namespaces
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, local_rendezvous

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "train_until_stopped.py"


class Stopping:
    """A program in a fake container, started; its lines are read as it goes."""

    def __init__(self, base, *words, start=()):
        self.base = base
        variables = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        variables.update(OptMl(base).host("algo-1").environ())
        self._log = base / "log.txt"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *start, str(_SCRIPT), *map(str, words)],
                env=variables,
                cwd=base,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def until(self, mark):
        """Wait until the program says that it is there."""
        while f"\nat {mark}\n" not in self.log:
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        return self

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self

    def end(self):
        """Wait for the end, and return the exit code."""
        try:
            return self.process.wait(timeout=120)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @property
    def log(self):
        return self._log.read_text()

    @property
    def checkpoint(self):
        """The newest save of the stopped fit, loaded."""
        records = [json.loads(path.read_text()) for path in self.base.rglob("fit-0/step-*.json")]
        newest = max(records, key=lambda record: record["number"])
        (path,) = self.base.rglob(f"fit-0/{newest['name']}")
        content = load_file(str(path), weights_only=False)
        assert newest["step"] == content["global_step"]
        return content

    @property
    def model(self):
        return load_file(str(self.base / "model" / "model.pt"), weights_only=True)


def assert_exported(stopped):
    content = stopped.checkpoint
    assert all((content["state_dict"][name] == stopped.model[name]).all() for name in content["state_dict"])
    assert json.loads((stopped.base / "model" / "model.json").read_text())["global_step"] in (
        content["global_step"],
        content["global_step"] - 1,  # Lightning 1.5 has not counted the step that has just been taken
    )


def test_sigterm_in_an_epoch_saves_exports_and_ends_with_143(tmp_path):
    stopped = Stopping(tmp_path / "ml", "--namespace", installed_namespaces()[0].name).until("step 5").stop()
    assert stopped.end() == 143, stopped.log
    assert stopped.checkpoint["global_step"] >= 5
    assert_exported(stopped)
    assert "at end" not in stopped.log
    assert "at validation" not in stopped.log
    assert not (stopped.base / "output" / "failure").exists()


def test_sigterm_to_torchrun_saves_once_for_both_ranks(tmp_path):
    """With workers of data loaders, which torchrun signals as well."""
    start = ["-m", "torch.distributed.run", "--nproc_per_node=2", *local_rendezvous()]
    stopped = Stopping(tmp_path / "ml", "--workers", 2, start=start).until("step 20").stop()
    assert stopped.end() != 0  # torchrun's own code, whatever its workers end with
    assert stopped.log.count("Saved ") == 1, stopped.log
    assert "killed by signal" not in stopped.log
    assert "exitcode: -9" not in stopped.log
    content = stopped.checkpoint
    assert_exported(stopped)
    # Both ranks left after the same step.
    steps = [int(step) for step in re.findall(r"^at step (\d+)", stopped.log, re.M)]
    assert steps.count(content["global_step"] - 1) == 2
    assert content["global_step"] not in steps
