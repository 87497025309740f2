"""The quickstart: its policies are JSON, its commands exist, and the model is loaded as the page says."""

import json
import shlex
import shutil

import pytest

from tests.docs.pages import blocks
from tests.helpers.processes import ROOT, run_python

_PAGE = ROOT / "docs" / "quickstart.md"


def test_policies():
    role, caller = map(json.loads, blocks(_PAGE, "json"))
    actions = [action for each in caller["Statement"] for action in [each["Action"]] for action in
               (action if isinstance(action, list) else [action])]  # fmt: skip
    assert {"iam:PassRole", "sagemaker:CreateTrainingJob", "logs:GetLogEvents", "s3:PutObject"} <= set(actions)
    for statement in (*role["Statement"], *caller["Statement"]):
        assert set(statement) <= {"Effect", "Action", "Resource", "Condition"}


@pytest.mark.full
def test_the_model_is_trained_and_loaded_as_the_page_says(tmp_path):
    pytest.importorskip("torchvision", reason="the extra examples")
    pytest.importorskip("tensorboard", reason="the extra examples")
    folder = tmp_path / "cifar10"
    unwanted = shutil.ignore_patterns("__pycache__", "lightning_logs")
    shutil.copytree(ROOT / "examples" / "cifar10", folder, ignore=unwanted)
    (line,) = (
        line for block in blocks(_PAGE, "bash") for line in block.splitlines() if line.startswith("python train.py")
    )
    short = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--sagemaker.model_dir=cifar10-1"]
    run_python(*shlex.split(line)[1:], *short, folder=folder)
    (load,) = blocks(_PAGE, "python")
    shown = run_python("-c", f"{load}\nprint(model(torch.zeros(2, 3, 32, 32)).shape)", folder=folder)
    assert shown.stdout.splitlines()[-1] == "torch.Size([2, 10])"
