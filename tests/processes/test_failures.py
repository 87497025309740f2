"""Whatever ends one rank, every host's failure file and rank 0's report name it, and no process stays blocked."""

import re
import time
from pathlib import Path
from typing import Dict, NamedTuple

import pytest

from tests.helpers.processes import Job
from tests.observe.made_up import Page

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "fail.py"
# The launch, arguments of the script, and the hosts.
_LAUNCHES = {
    "torchrun_one_host": (lambda job: job.torchrun(1, 2), (), ("algo-1",)),
    "torchrun_two_hosts": (lambda job: job.torchrun(2, 1), (), ("algo-1", "algo-2")),
    "mpirun": (lambda job: job.mpirun(2), (), ("algo-1",)),
    "one_process_on_two_hosts": (lambda job: job.one_per_host(2), ("--devices", 1), ("algo-1", "algo-2")),
}


class Played(NamedTuple):
    """A job that has ended: its directory, and what each host's failure file holds."""

    job: Job
    folder: Path
    reasons: Dict[str, str]


def play(folder, launch, how):
    start, devices, hosts = _LAUNCHES[launch]
    job = start(Job(folder, _SCRIPT, "--how", how, *devices, MY_API_TOKEN="hunter2-hunter2"))
    if how != "finish":
        assert 0 not in job.codes, job.output[-6000:]
        assert None not in job.codes, job.output[-6000:]
        # Imports of a busy machine do not count.
        assert time.time() - float((folder / "failed-at").read_text()) < 40
    files = {host: folder / host / "output" / "failure" for host in hosts}
    return Played(job, folder, {host: path.read_text() for host, path in files.items() if path.exists()})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a job, once for all tests that look at its end."""
    played = {}

    def run(launch, how):
        if (launch, how) not in played:
            played[launch, how] = play(tmp_path_factory.mktemp(f"{launch}-{how}"), launch, how)
        return played[launch, how]

    return run


# What the reason begins with, by the launch and by how the rank fails.
_REASONS = {
    ("torchrun_two_hosts", "blocked"): r"KeyError: 'layers' \(rank 1 on algo-2; at .*fail\.py:\d+ in fail; "
    r"then RuntimeError: no layers, said the owner of \*\*\*\)$",
    ("mpirun", "exit"): r"SystemExit: no data for this rank \(rank 1 on algo-1; at ",
    ("torchrun_one_host", "kill"): r"Rank 1 on algo-1 was killed: it exited without an exception \(SIGKILL, ",
    # Before the ranks have joined.
    ("torchrun_two_hosts", "model"): r"KeyError: 'layers' \(.*on algo-2; at .*fail\.py:",
    ("one_process_on_two_hosts", "main"): r"Rank 0 on algo-1 was killed: it exited without an exception \(SIGKILL, ",
}


@pytest.mark.parametrize(("launch", "how"), _REASONS)
def test_the_first_cause_is_the_reason_on_every_host(run, launch, how):
    job, _, reasons = run(launch, how)
    assert sorted(reasons) == sorted(_LAUNCHES[launch][2]), job.output[-6000:]
    for reason in reasons.values():
        assert re.match(_REASONS[launch, how], reason), reason


def test_a_blocked_rank_is_ended(run):
    job, _, _ = run("torchrun_two_hosts", "blocked")
    assert "Blocked after another rank failed; exiting with code 1." in job.output


def test_a_program_that_goes_on_after_the_error_of_its_fit_is_not_ended(run):
    job, folder, reasons = run("one_process_on_two_hosts", "uploads")
    assert (folder / "uploaded").exists(), job.output[-6000:]
    assert reasons["algo-1"].startswith("KeyError: 'layers' (rank 1 on algo-2; at ")


def test_a_rank_that_ends_first_is_not_reported(run):
    job, _, reasons = run("one_process_on_two_hosts", "finish")
    assert job.codes == [0, 0], job.output[-6000:]
    assert reasons == {}


@pytest.mark.parametrize(("launch", "how"), [("mpirun", "exit"), ("torchrun_two_hosts", "blocked")])
def test_rank_zero_reports_the_failure_of_another_rank(run, launch, how):
    job, folder, reasons = run(launch, how)
    found = list(folder.glob("*/output/data/report.html"))
    assert [path.parts[-4] for path in found] == ["algo-1"], job.output[-6000:]
    page = Page(found[0].read_text(encoding="utf-8"))
    assert " failed " in page.shown
    assert reasons["algo-1"] in page.shown
    assert "(rank 1 on " in page.shown
    assert ["processes", "2"] in page.rows
    assert ["backend", "gloo"] in page.rows


def test_a_fit_of_two_processes_is_reported_once(run):
    job, folder, _ = run("one_process_on_two_hosts", "finish")
    (found,) = folder.glob("*/output/data/report.html")
    assert "completed 1 epoch" in Page(found.read_text(encoding="utf-8")).shown
    assert job.output.count("Wrote the report of the fit") == 1
