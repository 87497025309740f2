"""A job over gloo ends with exit code 0; a long run of such jobs is made by a variable."""

import os
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "finish.py"
# Without us about one finished gloo job in ten aborts; LIGHTNING_SM_EXIT_RUNS=100 makes a long run of it.
_RUNS = int(os.environ.get("LIGHTNING_SM_EXIT_RUNS", "1"))


@pytest.mark.timeout(60 * _RUNS)
def test_no_finished_job_aborts(tmp_path):
    for run in range(_RUNS):
        results = Job(tmp_path / str(run), _SCRIPT, "ours", timeout=60).torchrun(1, 2).results(2)
        # The group is there until the very end, and nobody but us takes it down.
        assert results == [True, True]
