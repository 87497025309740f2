"""Two ranks go on with the batches that were next, each with its own."""

from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job
from tests.processes.resume import SETUPS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(installed_namespaces()[-1].version < (1, 6), reason="Lightning 1.5 goes on with the next epoch"),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("ranks"), Path(__file__).parent / "resume.py").torchrun(1, 2)


def test_two_ranks_go_on_with_their_own_batches(ranks):
    runs = [run for run in ranks[0] if run not in ("setups", "one rank")]
    for run in runs:
        first, second = (rank[run] for rank in ranks)
        assert first["left"] == second["left"] == (1 if "batch" in run else 3)
        for rank in (first, second):
            assert (rank["same_batches"], rank["same_weights"]) == (True, True), run
        for one, other in zip(first["samples"], second["samples"]):
            assert not set(one) & set(other)
    assert len(runs) == 4


@pytest.mark.parametrize("name", SETUPS)
def test_each_rank_goes_on_with_its_own_random_numbers_and_sums(ranks, name):
    first, second = (rank["setups"][name] for rank in ranks)
    assert first == second == [[True, True]] * 2


def test_a_checkpoint_of_one_rank_alone_lets_nobody_wait(job, ranks):
    # Both were seeded alike and draw alike, so that one rank's random numbers are both ranks'.
    assert [rank["one rank"] for rank in ranks] == [True, True]
    assert "The checkpoint was saved by one rank only" in job.output
