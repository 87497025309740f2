"""Processes that ``multiprocessing`` starts, by ``ddp_spawn`` or a pool: each fit is trained, and none is resumed."""

import json
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_HERE = Path(__file__).parent
_NOT_RESUMED = "Fits in processes that multiprocessing starts, as ddp_spawn does, cannot be resumed: this one"


def test_spawned_processes_train_each_fit_and_an_error_of_one_is_the_reason(tmp_path):
    job = Job(tmp_path, _HERE / "spawn.py").one_per_host(1)
    assert job.codes == [1], job.output[-6000:]
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["model"], seen["failure"]) == (True, False)
    # The new processes of the second fit must not take it for the first, which has ended.
    first, trained, again, trained_again = seen["weights"]
    assert first == again
    assert trained == trained_again != first
    assert job.output.count(_NOT_RESUMED) == 3
    reason = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert reason.startswith("KeyError: 'layers' (on algo-1; at "), reason


def test_folds_in_processes_of_their_own_are_trained_each(tmp_path):
    job = Job(tmp_path, _HERE / "folds_in_pool.py").one_per_host(1)
    assert job.codes == [0], job.output[-6000:]
    # Eight batches an epoch, one epoch and two.
    assert json.loads((tmp_path / "seen.json").read_text()) == [list(range(1, 9)), list(range(1, 17))]
    assert job.output.count(_NOT_RESUMED) == 2
