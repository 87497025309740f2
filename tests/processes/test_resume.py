"""Two ranks continue from their common saves, each with its own random numbers, sums and states of callbacks."""

import pytest

from tests.helpers.processes import Job
from tests.processes.resume import SETUPS

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("ranks"), "tests.processes.resume").torchrun(1, 2)


@pytest.mark.parametrize("name", SETUPS)
def test_each_rank_continues_with_its_own_random_numbers_and_sums(ranks, name):
    for rank in ranks:
        whole, ends = rank[name]["whole"], rank[name]["ends"]
        assert len(ends) >= 3
        for end in ends:
            assert end["outcome"] == whole, end["save"]
            assert end["logged"], end["save"]
    # They draw numbers of their own.
    assert ranks[0][name]["whole"]["random"] != ranks[1][name]["whole"]["random"]
