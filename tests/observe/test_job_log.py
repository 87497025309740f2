"""The logs of whole programs in a container: nothing of a terminal in them, and each line once."""

import math
import sys

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.environ import mpirun
from tests.observe.form import progress_lines

PL = installed_namespaces()[-1].module()


SHOWN = ("--config=config.yaml", "--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true")


def here(container, *words):
    """Run it in this process, and return the trainer."""
    container.opt_ml.write("hyperparameters.json", {})
    return container.cli(*words, run=True).trainer


def shown(trainer):
    """Lightning's bars that are drawn, and the shortest time between two lines."""
    bars = [each for each in trainer.callbacks if isinstance(each, PL.callbacks.ProgressBar) and each.is_enabled]
    monitors = [each.progress.every for each in trainer.callbacks if type(each).__name__ == "TrainingMonitor"]
    return [type(bar).__name__ for bar in bars], monitors


@pytest.mark.skipif(PL.__version__ < "2.6", reason="its summary has no boxes")
@pytest.mark.usefixtures("one_namespace")
def test_the_summary_has_no_boxes_of_rich(container, monkeypatch):
    monkeypatch.setattr("pytorch_lightning.utilities.imports._RICH_AVAILABLE", True)
    callbacks = container.cli(*SHOWN).trainer.callbacks
    assert [type(each).__name__ for each in callbacks if isinstance(each, PL.callbacks.ModelSummary)] == [
        "ModelSummary"
    ]


@pytest.mark.usefixtures("one_namespace")
@pytest.mark.parametrize(
    ("words", "every"),
    [
        (["--trainer.enable_progress_bar=false"], None),
        ([*SHOWN[1:], "--trainer.callbacks+=TQDMProgressBar"], 30),
        pytest.param([*SHOWN[1:], "--trainer.callbacks+=RichProgressBar"], 30, marks=pytest.mark.full),
        ([*SHOWN[1:], "--trainer.callbacks+=lightning_sm.callbacks.TrainingMonitor", "--trainer.callbacks.progress=1m"],
         60),
    ],
    ids=["none", "tqdm", "rich", "ours"],
)  # fmt: skip
def test_beside_what_the_user_says(container, words, every, lines):
    if "Rich" in words[-1]:
        pytest.importorskip("rich")
    trainer = here(container, "fit", "--config=config.yaml", *words)
    assert shown(trainer) == ([], [every or 30])
    assert bool(progress_lines(lines)) == (every is not None)


@pytest.mark.usefixtures("one_namespace")
@pytest.mark.parametrize(
    ("stream", "launcher"),
    [("stdout", {}), ("stderr", {}), ("stdout", mpirun(0, 1, 0, 1, MASTER_ADDR="127.0.0.1"))],
    ids=["stdout", "stderr", "mpirun's pseudo-terminal"],
)
def test_in_a_terminal_the_normal_bar_stays(container, in_environ, stream, launcher, monkeypatch, lines):
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    in_environ(launcher)
    trainer = here(container, "fit", *SHOWN)
    bars, every = shown(trainer)
    assert (len(bars), every) == ((0, [30]) if launcher else (1, [math.inf]))
    assert bool(progress_lines(lines)) is bool(launcher)
