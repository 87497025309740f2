"""``--measure`` on projects that stay as they are, in processes of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

_PROJECT = """
import pathlib, sys, time
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

class Model(LightningModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)
        self.frozen = torch.nn.Linear(3, 3).requires_grad_(False)
        self.width = width
        if width > 8:
            self.unreached = torch.nn.LazyLinear(2)

    def training_step(self, batch, batch_idx):
        # The first steps are slow, as those of a GPU are.
        time.sleep(0.2 if self.global_step < 4 else 0.02)
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        time.sleep(0.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(16, self.width))

    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(1, self.width))
"""
_SCRIPT = """
from model import Model, CSVLogger, LearningRateMonitor, ModelCheckpoint, Trainer, pathlib, sys

devices = int(sys.argv[1])
trainer = Trainer(
    max_epochs=50, accelerator="cpu", devices=devices, strategy=sys.argv[2] if devices > 1 else "auto",
    accumulate_grad_batches=2, val_check_interval=4, enable_progress_bar=False, enable_model_summary=False,
    logger=CSVLogger("logs"), callbacks=[ModelCheckpoint("saved", every_n_train_steps=1), LearningRateMonitor()],
)
trainer.fit(Model())
pathlib.Path("after.txt").write_text("fit has returned")
"""
_CONFIG = """
model: {class_path: model.Model, init_args: {width: 100}}
trainer: {max_epochs: 2, accelerator: cpu, enable_progress_bar: false, enable_model_summary: false}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "model.py").write_text(_PROJECT)
    (tmp_path / "train.py").write_text(_SCRIPT)
    (tmp_path / "config.yaml").write_text(_CONFIG)
    return tmp_path


def _plan(project, *program):
    words = ["plan", "--measure", "--instance", "ml.g5.xlarge", "--hosts", "1,2", *program]
    done = subprocess.run(
        [sys.executable, "-m", "lightning_sm", *words],
        cwd=project, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert sorted(each.name for each in project.iterdir()) == ["config.yaml", "model.py", "train.py"]
    return done


def test_a_script_is_measured_and_nothing_is_left(project):
    done = _plan(project, "train.py", "2", "ddp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Measured with 2 processes on cpu")
    assert "18 parameters, 72 B of gradients" in done.stdout
    step_ms = float(done.stdout.split(" ms a step on one host")[0].split()[-1])
    assert 20 < step_ms < 150  # neither the slow first steps, nor validations


def test_processes_whose_clocks_differ_end_at_the_same_batch(project):
    # To the second process a step takes seconds: it would end its periods, and the training, earlier.
    fast = "import os, time\nclock = time.perf_counter\nif os.environ.get('LOCAL_RANK') == '1':\n"
    (project / "train.py").write_text(f"{fast}    time.perf_counter = lambda: 200 * clock()\n{_SCRIPT}")
    done = _plan(project, "train.py", "2", "ddp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Measured with 2 processes on cpu")


def test_a_program_that_spawns_its_processes_is_refused(project):
    done = _plan(project, "train.py", "2", "ddp_fork")
    assert done.returncode == 2
    assert "`train.py 2 ddp_fork` spawns or forks its processes" in done.stderr.splitlines()[-1]


def test_a_training_of_the_cli_is_measured_also_if_it_is_short(project):
    done = _plan(project, "fit", "--config", "config.yaml", "--trainer.max_epochs=1")
    assert done.returncode == 0, done.stderr
    assert "202 parameters" in done.stdout


def test_a_program_that_trains_nothing_is_told_apart(project):
    done = _plan(project, "train.py", "no number")
    assert done.returncode == 2
    assert "ended before a step was measured: exit code 1. HINT: " in done.stderr
    assert "ValueError" in done.stderr
    done = _plan(project, "no-such-command")
    assert "No such file or directory: 'no-such-command'. HINT: " in done.stderr
