"""The example's launch.yaml and the notebook."""

import ast
import json
import re
from pathlib import Path

import pytest

from lightning_sm.launch import check_limits, create_job_request
from lightning_sm.launch._arguments import command_parser
from lightning_sm.launch._command import _read
from tests.launch.conftest import ROLE
from tests.launch.test_request import ACCOUNT

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_notebook_holds_code_that_compiles_and_no_outputs():
    notebook = json.loads((EXAMPLES / "launch.ipynb").read_text())
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        ast.parse("".join(cell["source"]))
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert not re.search(r"\d{12}|/home/|/work/|/Users/", json.dumps(notebook))


@pytest.mark.full
@pytest.mark.parametrize("example", ["cifar10", "transformer"])
def test_the_examples_settings_want_a_role_and_nothing_else(monkeypatch, example):
    pytest.importorskip("botocore", reason="the extra launch is not installed")
    monkeypatch.chdir(EXAMPLES / example)
    assert not re.search(r"\b\d{12}\b", Path("launch.yaml").read_text())
    settings, _, _ = _read(command_parser("launch"), ["fit", "--config", "config.yaml"])
    assert settings.role == "arn:aws:iam::ACCOUNT:role/ROLE"
    settings.role = ROLE
    check_limits(create_job_request(settings, ACCOUNT, name="job-1"))
