"""A rank that starts late: real processes log for whom they wait, until it has joined, and once the topology."""

import re
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "join_late.py"
# By a torchrun on each host, and by Lightning, where the main host is late: strategy, launch and late rank.
_LAUNCHES = {
    "torchrun": ("smddp", lambda job: job.torchrun(2, 1), 1),
    "late_main_host": ("ddp", lambda job: job.one_per_host(2), 0),
}


@pytest.fixture(scope="module", params=_LAUNCHES)
def late(request, tmp_path_factory):
    strategy, start, late_rank = _LAUNCHES[request.param]
    job = Job(tmp_path_factory.mktemp(request.param), _SCRIPT, strategy, late_rank, 3)
    return request.param, start(job)


def _waits(job, start):
    """The lines of the wait, with what toolkits may put before them."""
    return [line[line.index(start) :] for line in job.output.splitlines() if start in line]


def test_all_join_and_nothing_is_logged_afterwards(late):
    _, job = late
    assert job.results(2) == [{"size": 2, "waits": False}] * 2


def test_the_topology_is_logged_once_before_anybody_waits(late):
    launch, job = late
    lines = job.output.splitlines()
    (world,) = (index for index, line in enumerate(lines) if "topology: world: 2 processes" in line)
    assert "2 hosts" in lines[world]
    waits = [index for index, line in enumerate(lines) if "Waiting at " in line]
    assert world < min(waits, default=len(lines))
    # Of Lightning's own strategy, its own line names the backend.
    is_ours = _LAUNCHES[launch][0] == "smddp"
    assert sum("topology: backend: gloo, because " in line for line in lines) == is_ours


def test_who_is_waited_for(late):
    launch, job = late
    if launch == "late_main_host":
        assert not _waits(job, "Waiting at ")
        lines = _waits(job, "Rank 1 waits for the main host 127.0.0.1:")
        assert re.search(r"and for all other ranks, for \d s so far\. The log of rank 0 names", lines[0])
    else:
        assert not _waits(job, "Rank 1 waits")
        lines = _waits(job, "Waiting at 127.0.0.1:")
        assert re.match(r"Waiting at \S+ for 1 of 2 ranks, for \d s so far\.", lines[-1])
        assert lines[-1].endswith(" Started, but not in the rendezvous yet: rank 1.")
    assert len(lines) <= 6
