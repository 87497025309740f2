"""``lightning-sm metrics`` on a project, as its users call it."""

import json
import re

import pytest

from lightning_sm.__main__ import main
from lightning_sm._observe.metrics import metric_lines, metric_regex
from tools import ROOT

pytestmark = pytest.mark.usefixtures("clean_process")

_MONITORED = """
trainer:
  strategy: fsdp
  callbacks:
  - class_path: pytorch_lightning.callbacks.EarlyStopping
    init_args: {monitor: val_loss, patience: 3}
  - class_path: pytorch_lightning.callbacks.LearningRateMonitor
"""
_WORDS = ("--config=config.yaml", "--config=monitored.yaml", "--data.init_args.data_dir=.")


@pytest.fixture
def project(container):
    """The tiny project, on a laptop, with callbacks that monitor and log."""
    return container.leave().config(_MONITORED, name="monitored.yaml")


@pytest.mark.full
def test_a_run(project, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = set(project.base.rglob("*"))
    code = main(["metrics", "--run", "train.py", "fit", *_WORDS])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert {each["Name"] for each in json.loads(captured.out)} == {"val_loss", "loss", "lr-SGD"}
    assert set(project.base.rglob("*")) == before


@pytest.mark.full
def test_a_run_of_a_script_that_reads_no_arguments(project, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (project.code / "script.py").write_text(
        "import pytorch_lightning as pl, lightning_sm\nfrom tests.helpers.tiny import loader, tiny_model\n"
        "trainer = pl.Trainer(**lightning_sm.trainer_settings(max_epochs=3))\n"
        "trainer.fit(tiny_model(pl), loader(), loader())\nassert trainer.global_step == 1\n"
    )
    assert main(["metrics", "--run", "script.py"]) == 0
    assert {each["Name"] for each in json.loads(capsys.readouterr().out)} == {"train_loss", "val_loss", "val_count"}


@pytest.mark.full
def test_a_run_that_fails_shows_why(project, capfd):
    assert main(["metrics", "--run", "--config=config.yaml", "--model=tiny_model.Missing"]) == 1
    said = capfd.readouterr().err
    assert re.search("ended with exit code [12]\\.", said)
    assert "Missing" in said
    assert "HINT:" in said


def test_a_run_that_prints_another_encoding(tmp_path, capsys):
    (line,) = metric_lines({"val_loss": 1}, 1, 2)[0]
    program = tmp_path / "train.py"
    program.write_text(f"import sys; sys.stdout.buffer.write({'Größe'.encode('latin-1')!r}); print(); print({line!r})")
    assert main(["metrics", "--run", str(program)]) == 0
    assert [each["Name"] for each in json.loads(capsys.readouterr().out)] == ["val_loss"]


def test_names(capsys):
    assert main(["metrics", "--names", "val_loss", "a b"]) == 0
    definitions = json.loads(capsys.readouterr().out)
    assert definitions == [{"Name": name, "Regex": metric_regex(name)} for name in ("val_loss", "a b")]
    (line,) = metric_lines({"a b": 2.5, "val_loss": 1}, 1, 2)[0]
    assert [re.search(each["Regex"], line).group(1) for each in definitions] == ["1", "2.5"]
