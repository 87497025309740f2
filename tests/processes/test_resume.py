"""Two ranks go on with the batches that were next, each with its own."""

from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(installed_namespaces()[-1].version < (1, 6), reason="Lightning 1.5 goes on with the next epoch"),
]


def test_two_ranks_go_on_with_their_own_batches(tmp_path):
    ranks = Job(tmp_path, Path(__file__).parent / "resume.py").torchrun(1, 2).results(2)
    for run in ranks[0]:
        first, second = (rank[run] for rank in ranks)
        assert first["left"] == second["left"] == (1 if "batch" in run else 3)
        for rank in (first, second):
            assert (rank["same_batches"], rank["same_weights"]) == (True, True), run
        for one, other in zip(first["samples"], second["samples"]):
            assert not set(one) & set(other)
    assert len(ranks[0]) == 4
