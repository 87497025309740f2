"""A rank that starts late: real processes log for whom they wait, until it has joined, and once the topology."""

import re

import pytest

from tests.helpers.processes import Job

pytestmark = pytest.mark.full


def _lines(job, start):
    """The lines of the log with this in them, from there on."""
    return [line[line.index(start) :] for line in job.output.splitlines() if start in line]


# By a torchrun on each host, and by Lightning, where the main host is late; who waits, and for whom.
@pytest.mark.parametrize(
    ("strategy", "start", "late_rank", "waits", "for_whom"),
    [
        (
            "smddp",
            lambda job: job.torchrun(2, 1),
            1,
            "Waiting at 127.0.0.1:",
            r"\d+ for 1 of 2 ranks, for \d s so far\..* Started, but not in the rendezvous yet: rank 1\.$",
        ),
        (
            "ddp",
            lambda job: job.one_per_host(2),
            0,
            "Rank 1 waits for the main host 127.0.0.2:",
            r".*and for all other ranks, for \d s so far\. The log of rank 0 names",
        ),
    ],
    ids=["torchrun", "late_main_host"],
)
def test_who_is_waited_for_until_all_have_joined(tmp_path, strategy, start, late_rank, waits, for_whom):
    job = start(Job(tmp_path, "tests.processes.join_late", strategy, late_rank, 3))
    assert job.results(2) == [{"size": 2, "waits": False}] * 2
    lines = _lines(job, waits)
    assert re.match(re.escape(waits) + for_whom, lines[-1])
    # Nobody else does, and nothing is logged afterwards.
    assert len(lines) == len(_lines(job, "Waiting at ")) + len(_lines(job, "Rank 1 waits")) <= 6
    # The topology is logged once, before.
    (world,) = _lines(job, "topology: world: 2 processes")
    assert "2 hosts" in world
    assert strategy == "ddp" or job.output.index(world) < job.output.index(lines[0])
    # Of Lightning's own strategy, its own line names the backend.
    assert len(_lines(job, "topology: backend: gloo, because ")) == (strategy == "smddp")
