"""A job over gloo ends with exit code 0; a long run of such jobs is made by a variable."""

import os
from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "train_each_way.py"
_NAMESPACE = installed_namespaces()[0].name
# Without us about one finished gloo job in ten aborts; LIGHTNING_SM_EXIT_RUNS=100 makes a long run of it.
_RUNS = int(os.environ.get("LIGHTNING_SM_EXIT_RUNS", "1"))


@pytest.mark.timeout(60 * _RUNS)
def test_no_finished_job_aborts(tmp_path):
    for run in range(_RUNS):
        # In this way the group is there until the very end, and nobody but us takes it down.
        Job(tmp_path / str(run), _SCRIPT, _NAMESPACE, 2, 1, "class", timeout=60).torchrun(1, 2).results(2)
