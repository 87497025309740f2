"""``ddp_spawn`` in a container: the trainer is pickled, and the parent of the spawned processes speaks for the job."""

import json
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "spawn.py"


def test_spawned_processes_train_and_an_error_of_one_is_the_reason(tmp_path):
    job = Job(tmp_path, _SCRIPT).one_per_host(1)
    assert job.codes == [1], job.output[-6000:]
    assert json.loads((tmp_path / "first.json").read_text()) == {"model": True, "failure": False}
    reason = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert reason.startswith("KeyError: 'layers' (on algo-1; at "), reason
