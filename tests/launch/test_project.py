"""What is said of a project before its job is sent; its own parser reads the line."""

import importlib.util
import json
import sys
import time

import pytest

from lightning_sm.__main__ import main
from lightning_sm.launch import (
    Account,
    check_project,
    create_tuning_request,
    hyperparameters_of,
    settings_of,
    tuning_settings_of,
)

NET = """
import lightning_sm
print("the project prints while it is imported")
import pytorch_lightning as pl

class Net(pl.LightningModule):
    def __init__(self, tag: str = "a"):
        super().__init__()

    def training_step(self, batch, batch_idx):
        self.log("loss", 1.0)

    def validation_step(self, batch, batch_idx):
        self.log(f"{'val'}_loss", 1.0)
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
import lightning_sm
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--config", choices=["base"])
parser.add_argument("--sizes", choices=["a=1,b=2"])
parser.parse_args()
open("trained", "w").close()
"""
OWN_IMAGE = "1.dkr.ecr.us-east-1.amazonaws.com/mine:1"
GROUPS = ["head=1:ml.m5.large", "workers=2:ml.p4d.24xlarge"]


@pytest.fixture
def lightning_project(project):
    if importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("the parser is pytorch_lightning's")
    (project / "net.py").write_text(NET)
    (project / "train.py").write_text("from lightning_sm.cli import main\nmain()\n")
    (project / "config.yaml").write_text(CONFIG % ("auto", "val_loss"))
    return project


def said(*words, **given):
    """What is said of the project in the working directory, errors behind ``!``."""
    hyperparameters = {**given.pop("hyperparameters", {}), **hyperparameters_of(words)}
    given = {"instance_type": "ml.m5.xlarge", "hyperparameters": hyperparameters, **given}
    problems = check_project(settings_of(given))
    return "\n".join(f"{'!' if each.is_error else ''}{each.text} HINT: {each.hint}" for each in problems)


@pytest.mark.full
def test_lines_that_the_projects_parser_takes_and_refuses(lightning_project, monkeypatch):
    # Left over from a launcher on this machine.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SM_NUM_GPUS"):
        monkeypatch.setenv(name, "3")
    assert said("fit", "--config", "config.yaml", "--model.tag", "010") == ""
    refused = said("fit", "--config", "config.yaml", "--trainer.max_epoch", "3")
    assert refused.startswith("!")
    assert "max_epoch" in refused


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        # It writes bytes that are no text, and starts a process that goes on.
        (f"import os, subprocess\nos.write(2, b'\\xff')\nsubprocess.Popen(['sleep', '12'])\n{SCRIPT}", (), ""),
        (SCRIPT, ("--lr", "0.1", "--sizes", "{b: 2, a: 1}"), ""),
        (SCRIPT, ("--config", "base"), "The config file base is not in"),
        (SCRIPT, ("--lrr", "0.1"), "unrecognized arguments: --lrr"),
        (SCRIPT.replace("argparse", "jsonargparse"), ("--lr", "0.1"), ""),
        (f"raise ImportError('no such module')\n{SCRIPT}", (), "train.py ended before: ImportError: no such module"),
        # No parser of its own, which could be stopped.
        ("import lightning_sm  # argparse\nopen('trained', 'w')", ("--lr", "0.1"), ""),
    ],
)
def test_a_script_with_a_parser_of_its_own_is_stopped_behind_it(project, program, words, message):
    (project / "train.py").write_text(f'"""Training CLI of ours."""\n{program}')
    started = time.monotonic()
    assert [message in line for line in said(*words).splitlines()] == ([True] if message else [])
    assert time.monotonic() - started < 12
    assert not (project / "trained").exists()


def test_a_script_in_a_folder_finds_what_is_beside_it(project):
    (project / "src").mkdir()
    (project / "src" / "helper.py").write_text("")
    (project / "src" / "main.py").write_text(f"import helper\n{SCRIPT}")
    assert "unrecognized arguments: --lrr" in said("--lrr", "0.1", entry_point="src/main.py")


def test_a_script_finds_the_hosts_of_the_instances_that_are_preferred(project):
    count_hosts = """
import json, os
config = os.path.join(os.environ["SAGEMAKER_BASE_DIR"], "input", "config", "resourceconfig.json")
with open(config) as file:
    assert len(json.load(file)["hosts"]) == 2, "not the hosts of the request"
"""
    (project / "train.py").write_text(count_hosts + SCRIPT)
    kinds = [{"InstanceType": kind, "InstanceCount": 2} for kind in ("ml.p5.48xlarge", "ml.p4d.24xlarge")]
    resources = {"InstanceType": None, "InstanceCount": None, "InstancePreferences": kinds}
    assert said(set={"ResourceConfig": resources}) == ""


@pytest.mark.full
def test_six_faults_of_a_project(lightning_project, capsys):
    (lightning_project / "config.yaml").write_text(CONFIG % ("gpu", "val_lss"))
    words = ("fit", "--config", "config.yaml")
    text = said(*words)
    assert "!trainer.accelerator is gpu, and ml.m5.xlarge has no GPU." in text
    assert "\nval_lss is monitored, and 'lss' stands in no .py file." in text
    (lightning_project / "net.py").write_text(f"import einops\n{NET}")
    (lightning_project / "requirements.txt").write_text("pytorch-lightning==1.6.5\ntorch==2.4.1\n")
    (lightning_project / "config.yaml").write_text("data: {root: /home/me/data/cifar10}\n")
    text = said(*words)
    assert "!requirements.txt:1 wants pytorch-lightning==1.6.5, which needs torch 1.8 or newer and before 2.0" in text
    assert "!requirements.txt:2 wants torch==2.4.1" in text
    assert "config.yaml names /home/me/data/cifar10, a path of this machine" in text
    assert "\nnet.py imports einops, which requirements.txt does not name" in text
    assert main(["doctor", "--source-dir", ".", "--instance-type", "ml.m5.xlarge", *words]) == 1
    found = " ".join(capsys.readouterr().out.split())
    assert [line for line in text.replace("!", "").split("\n") if line not in found] == []


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ("./my.whl\n", r"names my.whl, which is not in the archive"),
        ("certifi @ file:///croot/certifi_1/work\n", "names /croot/certifi_1/work, which is not in the archive"),
        ("torch==2.4.1 \\\n    --hash=sha256:00\n", "requirements.txt:1 wants torch==2.4.1"),
        ("-r more.txt\n", r"names more.txt, which is not in the archive"),
        ("-r inner/more.txt\n", r"inner/more.txt:1 wants torch==2.4"),
        ("lightning==2.6.6 ; python_version < '3.9'\nlightning>=2.4\ntorch>=2.1\n-f https://x/y\n", ""),
        ("-r inner/loop.txt\n-e .[all]\n-c inner/../inner/base.txt\n", ""),
        ("git+https://github.com/a/b.whl\nx @ https://x/y.whl\n--no-index\n", ""),
    ],
)
def test_requirements_that_the_image_cannot_have(project, requirements, message):
    (project / "inner").mkdir()
    for name, text in (("more", "torch==2.4\n"), ("loop", "-r base.txt\n-r loop.txt\n"), ("base", "-r loop.txt\n")):
        (project / "inner" / f"{name}.txt").write_text(text)
    (project / "requirements.txt").write_text(requirements)
    assert (message in said()) if message else said() == ""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python lists the modules of packages from 3.10 on")
def test_imports_of_what_is_not_installed_here(project):
    """A module's name is not always its package's: `pip install sklearn` fails, and the images have scikit-learn."""
    (project / "train.py").write_text("import cv2, sklearn, none_such\nimport lightning_sm\n")
    (text,) = said().splitlines()
    assert text.startswith("train.py imports none_such, which requirements.txt does not name")
    assert "HINT: Add the package that has it to requirements.txt" in text


def test_config_files_that_are_not_packed(project):
    words = ("fit", "--config", "other.yaml")
    script = (project / "train.py").read_text()
    for text, kind in (("lightning_sm.cli.main()", "!"), (script, "")):
        (project / "train.py").write_text(text)
        assert said(*words).startswith(f"{kind}The config file other.yaml is not in")
    (project / "other.yaml").write_text("trainer: {a: /opt/ml/x/y, b: s3://b/c/d}  # /home/me/x\n")
    assert said(*words) == ""
    (project / ".gitignore").write_text("other.yaml")
    assert "!The config file other.yaml is left out of the archive by .gitignore" in said(*words)
    assert said("fit", "--config", "training/x.yaml", channels={"training": "s3://bucket/data"}) == ""
    assert said("fit", "--config", "{trainer: {max_epochs: 1}}") == ""


@pytest.mark.full
@pytest.mark.parametrize("uri", ["../data", "../data/config.yaml"])
def test_config_files_in_channels(lightning_project, uri):
    (lightning_project.parent / "data").mkdir()
    (lightning_project / "config.yaml").rename(lightning_project.parent / "data" / "config.yaml")
    in_s3, words = {"training": "s3://bucket/data"}, ("--trainer.max_epoch", "3")
    for path in ("training/config.yaml", "/opt/ml/input/data/training/config.yaml"):
        unread = f"The command line was not checked: the config file {path} is in the container only. HINT: "
        assert said("fit", "--config", path, *words, channels=in_s3).startswith(unread)
    assert "max_epoch" in said("fit", "--config", "training/config.yaml", *words, channels={"training": uri})


def test_what_the_program_and_the_instances_are(project):
    smddp = {"distribution": "smdistributed", "image": "pytorch-2.5-gpu"}
    smp = {"distribution": "smp", "image": "pytorch-2.0-gpu", "hyperparameters": {"mp_parameters": {"partitions": 2}}}
    for given, message in (
        ({"entry_point": "none.py"}, "--entry-point none.py is not in the archive"),
        ({"entry_point": "../train.py"}, "is not in the archive"),
        ({"entry_point": "train.sh", "distribution": "torch_distributed"}, "torchrun takes a .py file"),
        ({**smddp, "image": "pytorch-2.8-gpu"}, "pytorch-training:2.8.0-gpu-py312 has no SMDDP"),
        (smddp, "SMDDP does not run on ml.m5.xlarge"),
        ({**smddp, "instance_groups": GROUPS, "instance_type": ""}, "SMDDP does not run on ml.m5.large"),
        ({**smp, "image": "pytorch-2.8-gpu"}, "pytorch-training:2.8.0-gpu-py312 has no smdistributed.modelparallel"),
        ({"image": "pytorch-2.8-cpu", "instance_type": "ml.g5.xlarge"}, "is for CPUs, and ml.g5.xlarge has GPUs"),
    ):
        assert message in said(**given)
    groups = {"instance_groups": GROUPS, "instance_type": "", "distribution_groups": ["workers"]}
    assert said(**smddp, **groups) == said(image=OWN_IMAGE) == said(**smp) == ""
    (project / "setup.py").write_text("")
    assert "A setup.py" in said(distribution="torch_distributed")
    assert said() == ""


@pytest.mark.parametrize("tuning", [None, {"max_jobs": 2, "objective": "a", "ranges": {"b": [1, 2]}}])
@pytest.mark.parametrize(
    "field", ["AlgorithmSpecification", "AlgorithmSpecification.TrainingImage", "HyperParameters", "ResourceConfig"]
)
def test_fields_that_are_removed(project, field, tuning):
    (project / "train.py").write_text(SCRIPT)
    if tuning is None:
        assert said(set={field: None}) == ""
    else:
        settings = settings_of({"image": OWN_IMAGE, "set": {field: None}})
        request = create_tuning_request(settings, tuning_settings_of(tuning), Account("us-east-1", "bucket"), name="a")
        assert field not in request.as_body()["TrainingJobDefinition"]


def test_hyperparameters_that_set_gives_as_text(project):
    (project / "train.py").write_text(SCRIPT)
    (project / "base").write_text("a: 1")
    assert said(set={"HyperParameters.config": "base"}) == ""


def test_what_happens_to_a_program_that_does_not_import_the_package(project):
    (project / "train.py").write_text("print(1)")
    assert "LIGHTNING_SM_AUTO=1 gives each Trainer the job's world" in said()
    for given in ({"environment": {"LIGHTNING_SM_AUTO": "0"}}, {"image": "pytorch-2.4-gpu"}):
        assert "HINT: Put lightning_sm.auto() at the top of the program" in said(**given)


@pytest.mark.full
def test_secrets_are_named_and_not_shown(aws, run):
    secret = "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567"
    search = ("--objective", "a", "--direction", "maximize", "--max-jobs", "2", "--range", "x=[1, 2]", "--no-check")
    for command, options in (("launch", ()), ("tune", search)):
        shown = run(command, *options, "--dry-run", "--env", "NCCL_DEBUG=INFO", "--env", secret, "fit", "--lr", "0.1")
        assert shown.status == 0
        (line,) = shown.err.splitlines()
        assert "WANDB_API_KEY looks like a secret" in line
        assert "0123456789abcdef" not in line
        assert json.loads(shown.out)
