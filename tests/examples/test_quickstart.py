"""The quickstart: its policies are JSON, its commands exist, and the model is loaded as the page says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environ import without_launcher

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)


def test_policies():
    role, caller = map(json.loads, _blocks("json"))
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
    shutil.copytree(
        _ROOT / "examples" / "cifar10", folder, ignore=shutil.ignore_patterns("__pycache__", "lightning_logs")
    )
    (line,) = (line for block in _blocks("bash") for line in block.splitlines() if line.startswith("python train.py"))
    short = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--sagemaker.model_dir=cifar10-1"]
    _run(folder, *shlex.split(line)[1:], *short)
    (load,) = _blocks("python")
    shown = _run(folder, "-c", f"{load}\nprint(model(torch.zeros(2, 3, 32, 32)).shape)")
    assert shown.splitlines()[-1] == "torch.Size([2, 10])"


def _run(folder, *words):
    environ = {**without_launcher(os.environ), "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
