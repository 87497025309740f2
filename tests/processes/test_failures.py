"""Whatever ends one rank, every host's failure file and rank 0's report name it, and no process stays blocked."""

import re
import time
from pathlib import Path

import pytest

from tests.helpers.accelerator import ON_GPU
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


def play(folder, launch, how):
    """Return a job that has ended, and what the failure file of each host holds."""
    start, devices, hosts = _LAUNCHES[launch]
    job = start(Job(folder, _SCRIPT, "--how", how, *devices, MY_API_TOKEN="hunter2-hunter2"))
    if how != "finish":
        assert 0 not in job.codes, job.output[-6000:]
        assert None not in job.codes, job.output[-6000:]
        # Imports of a busy machine do not count.
        assert time.time() - float((folder / "failed-at").read_text()) < 40
    files = {host: folder / host / "output" / "failure" for host in hosts}
    return job, {host: path.read_text() for host, path in files.items() if path.exists()}


def report(job):
    """The one report, which rank 0 has written."""
    (found,) = job.folder.glob("*/output/data/report.html")
    assert found.parts[-4] == "algo-1"
    return Page(found.read_text(encoding="utf-8"))


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
def test_the_first_cause_is_the_reason_on_every_host(tmp_path, launch, how):
    job, reasons = play(tmp_path, launch, how)
    assert sorted(reasons) == sorted(_LAUNCHES[launch][2]), job.output[-6000:]
    for reason in reasons.values():
        assert re.match(_REASONS[launch, how], reason), reason
    assert how != "blocked" or "Blocked after another rank failed; exiting with code 1." in job.output
    if how in ("blocked", "exit"):
        # Of rank 1, and rank 0 reports it.
        page = report(job)
        assert " failed " in page.shown
        assert reasons["algo-1"] in page.shown
        assert ["processes", "2"] in page.rows
        assert ["backend", "nccl" if ON_GPU else "gloo"] in page.rows


@pytest.mark.skipif(ON_GPU, reason="where a rank is lost, NCCL raises no error")
def test_a_program_that_goes_on_after_the_error_of_its_fit_is_not_ended(tmp_path):
    job, reasons = play(tmp_path, "one_process_on_two_hosts", "uploads")
    assert (tmp_path / "uploaded").exists(), job.output[-6000:]
    assert reasons["algo-1"].startswith("KeyError: 'layers' (rank 1 on algo-2; at ")


def test_a_rank_that_ends_first_is_no_failure_and_the_fit_is_reported_once(tmp_path):
    job, reasons = play(tmp_path, "one_process_on_two_hosts", "finish")
    assert job.codes == [0, 0], job.output[-6000:]
    assert reasons == {}
    assert "completed 1 epoch" in report(job).shown
    assert job.output.count("Wrote the report of the fit") == 1
