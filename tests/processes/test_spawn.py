"""Processes that ``multiprocessing`` starts, by a pool or ``ddp_spawn``: each fit is trained, and none is resumed."""

import json
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_NOT_RESUMED = "Fits in processes that multiprocessing starts, as ddp_spawn does, cannot be resumed: this one"


def test_each_fit_is_trained_and_an_error_of_one_is_the_reason(tmp_path):
    job = Job(tmp_path, Path(__file__).with_name("spawn.py")).one_per_host(1)
    assert job.codes == [1], job.output[-6000:]
    # Eight batches an epoch; two folds in processes of their own, of one epoch and of two.
    expected = {"steps": [8, 16], "has_learned": True, "model": True, "failure": False}
    assert json.loads((tmp_path / "seen.json").read_text()) == expected
    assert job.output.count(_NOT_RESUMED) == 4
    # The new processes of the second fit do not take it for the first, which has ended: it has come to its error.
    reason = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert reason.startswith("KeyError: 'layers' (on algo-1; at "), reason
