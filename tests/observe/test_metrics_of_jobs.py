"""The logs of real jobs in SageMaker's toolkit: their lines, and the regular expressions of their metrics."""

import re
from pathlib import Path

import pytest

from lightning_sm import metric_definitions
from tests.helpers.rehearsal import command_line, needs, run_rehearsal
from tests.observe.form import FORBIDDEN, progress_lines

HERE = Path(__file__).parent
LAUNCHES = ("plain", "torch_distributed", "mpi")
# What `train_metrics.py` logs, and how often each is found: every second step of each epoch, or once for each epoch.
STEPS = {"loss_step", "train/loss", "tiny", "huge", "a b", 'say "x=1"', "loss_2"}
EPOCHS = {"loss_epoch", "val_loss"}
NEVER = {"loss", "never", "up", "x", "train/loss_step", "step", "epoch"}
CONSTANTS = {"tiny": 1.5e-12, "huge": -3e20, "a b": 0.1, 'say "x=1"': 2.0, "loss_2": 7.0}


def check(lines, steps):
    """Each metric is found as often as it was logged, and nothing else is."""
    for definition in metric_definitions([*STEPS, *EPOCHS, *NEVER]):
        name = definition["Name"]
        found = [match for line in lines for match in re.findall(definition["Regex"], line)]
        values = [float(value) for value in found]
        assert len(values) == (steps if name in STEPS else 2 if name in EPOCHS else 0), name
        if name in CONSTANTS:
            assert set(values) == {CONSTANTS[name]}
    shown = " ".join(lines)
    assert " never=nan " in shown
    assert " up=inf " in shown


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_captured_log_of_a_job(name):
    lines = (HERE / "captured" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    steps = 8 if name == "plain" else 4
    check(lines, steps)
    # As mpirun writes them in CloudWatch; a rehearsal shows host and rank instead.
    check([f"[1,mpirank:0,algo-1]<stderr>:{line}" for line in lines], steps)


@pytest.mark.full
@needs(torch=True)
def test_a_job(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "train_metrics.py").write_text((HERE / "train_metrics.py").read_text())
    options = ("--isolation", "loopback", "--processes", 2, "--distribution", "torch_distributed")
    done = run_rehearsal(command_line(source, *options, "--timeout", "160s", "--json", "train_metrics.py"))
    lines = done.log.splitlines()
    check(lines, steps=4)
    # Two processes write one set of lines, without anything of a terminal.
    assert FORBIDDEN.search(done.log) is None
    assert "litlogger" not in done.log
    assert "litmodels" not in done.log
    # Lightning's other lines are there.
    assert [text for text in ("GPU available", "| Name", "Trainable params") if text not in done.log] == []
    ends = [(stage, words["samples"]) for stage, words, _ in progress_lines(lines) if stage.endswith(" end")]
    epoch = [("validation end", "16"), ("train end", "16")]
    assert ends == [("sanity check end", "8"), *epoch, *epoch, ("fit end", "32")]
    hangs = [line for line in lines if " hang:" in line]
    (waits,) = (line for line in hangs if "rank=1 of 2" in line)
    assert " batch=2 rank=1 of 2, waiting for data, in " in waits
    (other,) = (line for line in hangs if "rank=0 of 2" in line)
    assert "in the training step" in other
