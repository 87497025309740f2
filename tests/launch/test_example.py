"""The example's launch.yaml and the notebook."""

import ast
import json
import re
from pathlib import Path

import pytest

from lightning_sm.launch import LaunchError, check_request, create_job_request, settings_of
from lightning_sm.launch._words import read_file, read_words
from tests.launch.test_request import ACCOUNT, ROLE

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "launch.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
SENDS = [cell for cell in CODE if "sends" in cell["metadata"].get("tags", ())]
PLACEHOLDER = "arn:aws:iam::ACCOUNT:role/ROLE"


def test_the_notebook_holds_code_that_compiles_and_no_outputs():
    assert len(CODE) == 5
    assert len(SENDS) == 2
    for cell in CODE:
        ast.parse("".join(cell["source"]))
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    text = json.dumps(NOTEBOOK)
    assert not re.search(r"\d{12}|/home/|/work/|/Users/", text)


@pytest.mark.services
def test_the_cells_before_the_sending_run(monkeypatch):
    pytest.importorskip("boto3", reason="the extra launch is not installed")
    pytest.importorskip("pathspec", reason="the extra launch is not installed")
    monkeypatch.chdir(EXAMPLES)
    names = {}
    for cell in CODE:
        if cell not in SENDS:
            exec("".join(cell["source"]).replace(PLACEHOLDER, ROLE).replace("BUCKET", "bucket"), names)
            if "estimator_kwargs" in names and "model_trainer_kwargs" not in names:
                assert names["kwargs"]["hyperparameters"] == {"config": "config.yaml", "trainer.max_epochs": 2}
                assert names["kwargs"]["checkpoint_s3_uri"].startswith("s3://bucket/cifar10-")
    assert names["kwargs"]["hyperparameters"] == {
        "trainer__max_epochs": 2,
        "config": ["config.yaml", "launch_values.yaml"],
    }
    staged = Path(names["kwargs"]["source_code"]["source_dir"])
    assert "save_every: 5m" in (staged / "launch_values.yaml").read_text()
    assert any(path.suffix == ".whl" for path in staged.iterdir())


@pytest.mark.services
def test_the_examples_settings_want_a_role_and_nothing_else(monkeypatch):
    pytest.importorskip("botocore", reason="the extra launch is not installed")
    monkeypatch.chdir(EXAMPLES / "cifar10")
    read = read_words(["fit", "--config", "config.yaml"])
    request = create_job_request(read.settings, ACCOUNT, name="job-1", hyperparameters=read.hyperparameters)
    with pytest.raises(LaunchError, match=r"--role is 'arn:aws:iam::ACCOUNT:role/ROLE'.*HINT: Give the ARN"):
        check_request(request)
    settings = settings_of({**read_file("launch.yaml"), "role": ROLE})
    check_request(create_job_request(settings, ACCOUNT, name="job-1", hyperparameters=read.hyperparameters))


def test_no_account_number_stands_in_the_examples():
    for path in EXAMPLES.rglob("launch.*"):
        assert not re.search(r"\b\d{12}\b", path.read_text()), path
