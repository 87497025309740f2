"""The project's own parser reads the line before it is sent: what it refuses, and the metrics of the model."""

import importlib.util
import json

import pytest

from lightning_sm.launch import Account, LaunchError, check_project, create_job_request, settings_of
from lightning_sm.launch._check import definitions_of, line_of, look_at
from lightning_sm.launch._words import hyperparameters_of

NET = """
print("the project prints while it is imported")
import pytorch_lightning as pl

class Net(pl.LightningModule):
    def __init__(self, tag: str = "a"):
        super().__init__()

    def training_step(self, batch, batch_idx):
        self.log("loss", 1.0)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 1.0)
"""
CONFIG = """
model: {class_path: net.Net}
trainer:
  accelerator: %s
  callbacks:
  - class_path: pytorch_lightning.callbacks.ModelCheckpoint
    init_args: {monitor: %s}
"""
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
open("trained", "w").close()
"""


@pytest.fixture
def source(tmp_path):
    if importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("the parser is pytorch_lightning's")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text("from lightning_sm.cli import main\nmain()\n")
    (tmp_path / "config.yaml").write_text(CONFIG % ("auto", "val_loss"))
    return tmp_path


def request_of(source, *words, **given):
    role = "arn:aws:iam::123456789012:role/Trainer"
    given = {"image": "pytorch-2.8-gpu", "instance_type": "ml.m5.xlarge", "role": role, **given}
    settings = settings_of({"source_dir": str(source), "channels": {"training": "s3://bucket/data"}, **given})
    account = Account("us-east-1", "bucket")
    return create_job_request(settings, account, name="job-1", hyperparameters=hyperparameters_of(words))


def test_names_need_no_project():
    assert [each["Name"] for each in definitions_of(["a", "b"], None)] == ["a", "b"]
    assert definitions_of([], None) == []


@pytest.mark.processes
@pytest.mark.slow
def test_the_metrics_of_a_model_whose_project_prints(source):
    line = line_of(request_of(source, "fit", "--config", "config.yaml", "--model.tag", "010"))
    names = [each["Name"] for each in definitions_of(["extra", "val_loss", "auto"], line)]
    assert names == ["extra", "val_loss", "loss"]
    with pytest.raises(LaunchError, match=r"--metric auto: .* cannot be read: its parser names no model"):
        definitions_of(["auto"], type(line)())


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--config", "config.yaml", "--trainer.max_epoch", "3"], "max_epoch.*--no-check"),
        (["fit", "--config", "config.yaml", "--trainer.max_epochs", "many"], "max_epochs"),
        ([], "train.py refuses its command line"),
    ],
)
def test_lines_that_the_projects_parser_refuses(source, words, message):
    with pytest.raises(LaunchError, match=message):
        look_at(request_of(source, *words))


@pytest.mark.processes
def test_a_script_with_a_parser_of_its_own_is_stopped_behind_it(source):
    (source / "train.py").write_text(SCRIPT)
    look_at(request_of(source, "--lr", "0.1"))
    with pytest.raises(LaunchError, match="unrecognized arguments: --lrr"):
        look_at(request_of(source, "--lrr", "0.1"))
    assert not (source / "trained").exists()


@pytest.mark.processes
@pytest.mark.slow
def test_six_faults_of_a_project(source):
    (source / "config.yaml").write_text(CONFIG % ("gpu", "val_lss"))
    words = ("fit", "--config", "config.yaml")
    given = {"instance_type": "ml.m5.xlarge", "channels": {}}
    found = {each.check: (each.is_error, each.text) for each in check_project(str(source), words, **given)}
    assert found["accelerator"] == (True, "trainer.accelerator is gpu, and ml.m5.xlarge has no GPU.")
    assert found["monitor"] == (False, "val_lss is monitored, and net.Net logs loss, val_loss.")
    (source / "net.py").write_text(f"import einops\n{NET}")
    (source / "requirements.txt").write_text("pytorch-lightning==1.6.5\ntorch==2.4.1\n")
    (source / "config.yaml").write_text("data: {root: /home/me/data/cifar10}\n")
    text = "\n".join(each.text for each in check_project(str(source), words, **given))
    assert "requirements.txt:1 wants pytorch-lightning==1.6.5, which needs torch 1.8 or newer and before 2.0" in text
    assert "requirements.txt:2 wants torch==2.4.1" in text
    assert "config.yaml names /home/me/data/cifar10" in text
    assert "net.py imports einops, which requirements.txt does not name" in text


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ("./my.whl\n", r"names \./my\.whl, which is not in the archive"),
        ("-r more.txt\n", r"names more\.txt, which is not in the archive"),
        ("-r inner/more.txt\n", r"inner/more\.txt:1 wants torch==2\.4"),
        ("lightning==2.6.6 ; python_version < '3.9'\nlightning>=2.4\ntorch>=2.1\n-f https://x/y\n", None),
        ("git+https://github.com/a/b.whl\nx @ https://x/y.whl\n--no-index\n", None),
    ],
)
def test_requirements_that_the_image_cannot_have(source, requirements, message):
    (source / "train.py").write_text("print(1)")
    (source / "inner").mkdir()
    (source / "inner" / "more.txt").write_text("torch==2.4\n")
    (source / "requirements.txt").write_text(requirements)
    if message is None:
        look_at(request_of(source))
        return
    with pytest.raises(LaunchError, match=message):
        look_at(request_of(source))


def test_config_files_that_are_not_packed(source):
    words = ("fit", "--config", "other.yaml")
    with pytest.raises(LaunchError, match=r"The config file other\.yaml is not in"):
        look_at(request_of(source, *words))
    (source / "other.yaml").write_text("trainer: {}")
    (source / ".gitignore").write_text("other.yaml")
    with pytest.raises(LaunchError, match=r"other\.yaml is left out of the archive by \.gitignore"):
        look_at(request_of(source, *words))
    body = json.loads(request_of(source, *words).body)
    assert json.loads(body["HyperParameters"]["config"]) == "other.yaml"
