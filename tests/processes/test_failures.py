"""Whatever ends one rank, every host's failure file and rank 0's report name it, and no process stays blocked."""

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


@pytest.fixture
def run_everywhere(run):
    """Run a job whose every host has a reason; return the name of rank 1's host, and the reasons."""

    def run_everywhere(launch, how):
        job, _, reasons = run(launch, how)
        hosts = _LAUNCHES[launch][2]
        assert sorted(reasons) == sorted(hosts), job.output[-6000:]
        return hosts[-1], reasons.values()

    return run_everywhere


def test_a_rank_that_raises_is_the_reason_on_every_host(run_everywhere):
    host, reasons = run_everywhere("torchrun_two_hosts", "blocked")
    for reason in reasons:
        assert reason.startswith(f"KeyError: 'layers' (rank 1 on {host}; at ")
        assert "fail.py:" in reason
        assert reason.endswith(" in fail; then RuntimeError: no layers, said the owner of ***)")


def test_a_rank_that_exits_with_a_message_is_the_reason_on_every_host(run_everywhere):
    host, reasons = run_everywhere("mpirun", "exit")
    for reason in reasons:
        assert reason.startswith(f"SystemExit: no data for this rank (rank 1 on {host}; at ")


def test_a_rank_that_is_killed_is_the_reason_on_every_host(run_everywhere):
    host, reasons = run_everywhere("torchrun_one_host", "kill")
    for reason in reasons:
        assert reason.startswith(f"Rank 1 on {host} was killed: it exited without an exception (SIGKILL, ")


def test_an_error_before_the_ranks_have_joined_is_the_reason_on_every_host(run_everywhere):
    host, reasons = run_everywhere("torchrun_two_hosts", "model")
    for reason in reasons:
        assert reason.startswith("KeyError: 'layers' (")
        assert f"on {host}; at " in reason
        assert "fail.py:" in reason


def test_rank_zero_killed_in_its_first_second_is_the_reason_on_every_host(run_everywhere):
    _, reasons = run_everywhere("one_process_on_two_hosts", "main")
    for reason in reasons:
        assert reason.startswith("Rank 0 on algo-1 was killed: it exited without an exception (SIGKILL, ")


def test_a_blocked_rank_is_ended(run):
    job, _, reasons = run("torchrun_two_hosts", "blocked")
    assert reasons["algo-1"].startswith("KeyError: 'layers' (rank 1 on algo-2; at ")
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
