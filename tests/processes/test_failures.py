"""Whatever ends one rank, every host's failure file names it, and no other process stays blocked."""

import time
from pathlib import Path

import pytest

from tests.helpers.processes import Job

pytestmark = [pytest.mark.processes, pytest.mark.jobs]

_SCRIPT = Path(__file__).parent / "fail.py"
# The launch, arguments of the script, and the hosts.
_LAUNCHES = {
    "torchrun_one_host": (lambda job: job.torchrun(1, 2), (), ("algo-1",)),
    "torchrun_two_hosts": (lambda job: job.torchrun(2, 1), (), ("algo-1", "algo-2")),
    "mpirun": (lambda job: job.mpirun(2), (), ("algo-1",)),
    "one_process_on_two_hosts": (lambda job: job.one_per_host(2), ("--devices", 1), ("algo-1", "algo-2")),
    # Lightning starts rank 1.
    "one_process_on_one_host": (lambda job: job.one_per_host(1), ("--devices", 2), ("algo-1",)),
}


def run(folder, launch, how):
    """Run a job, and return it and what each host's failure file holds."""
    start, devices, hosts = _LAUNCHES[launch]
    job = start(Job(folder, _SCRIPT, "--how", how, *devices, MY_API_TOKEN="hunter2-hunter2"))
    if how != "finish":
        assert 0 not in job.codes, job.output[-6000:]
        assert None not in job.codes, job.output[-6000:]
        # Imports of a busy machine do not count.
        assert time.time() - float((folder / "failed-at").read_text()) < 40
    files = {host: folder / host / "output" / "failure" for host in hosts}
    return job, {host: path.read_text() for host, path in files.items() if path.exists()}


def run_everywhere(folder, launch, how):
    """Run a job whose every host has a reason; return the name of rank 1's host, and the reasons."""
    job, reasons = run(folder, launch, how)
    hosts = _LAUNCHES[launch][2]
    assert sorted(reasons) == sorted(hosts), job.output[-6000:]
    return hosts[-1], reasons.values()


@pytest.mark.parametrize("launch", ["torchrun_two_hosts", "mpirun", "one_process_on_two_hosts"])
def test_a_rank_that_raises_is_the_reason_on_every_host(tmp_path, launch):
    host, reasons = run_everywhere(tmp_path, launch, "raise")
    for reason in reasons:
        assert reason.startswith(f"KeyError: 'layers' (rank 1 on {host}; at ")
        assert "fail.py:" in reason
        assert reason.endswith(" in fail; then RuntimeError: no layers, said the owner of ***)")


@pytest.mark.parametrize("launch", ["torchrun_two_hosts", "one_process_on_two_hosts"])
def test_a_rank_that_exits_with_a_message_is_the_reason_on_every_host(tmp_path, launch):
    host, reasons = run_everywhere(tmp_path, launch, "exit")
    for reason in reasons:
        assert reason.startswith(f"SystemExit: no data for this rank (rank 1 on {host}; at ")


@pytest.mark.parametrize("launch", ["torchrun_one_host", "one_process_on_two_hosts"])
def test_a_rank_that_is_killed_is_the_reason_on_every_host(tmp_path, launch):
    host, reasons = run_everywhere(tmp_path, launch, "kill")
    for reason in reasons:
        assert reason.startswith(f"Rank 1 on {host} was killed: it exited without an exception (SIGKILL, ")


@pytest.mark.parametrize(
    "launch", ["torchrun_two_hosts", "mpirun", "one_process_on_two_hosts", "one_process_on_one_host"]
)
def test_an_error_before_the_ranks_have_joined_is_the_reason_on_every_host(tmp_path, launch):
    host, reasons = run_everywhere(tmp_path, launch, "model")
    for reason in reasons:
        assert reason.startswith("KeyError: 'layers' (")
        assert f"on {host}; at " in reason
        assert "fail.py:" in reason


@pytest.mark.parametrize("launch", ["torchrun_two_hosts", "one_process_on_two_hosts"])
def test_rank_zero_killed_in_its_first_second_is_the_reason_on_every_host(tmp_path, launch):
    _, reasons = run_everywhere(tmp_path, launch, "main")
    for reason in reasons:
        assert reason.startswith("Rank 0 on algo-1 was killed: it exited without an exception (SIGKILL, ")


def test_a_blocked_rank_is_ended(tmp_path):
    job, reasons = run(tmp_path, "torchrun_two_hosts", "blocked")
    assert reasons["algo-1"].startswith("KeyError: 'layers' (rank 1 on algo-2; at ")
    assert "Blocked after another rank failed; exiting with code 1." in job.output


def test_a_rank_that_ends_first_is_not_reported(tmp_path):
    job, reasons = run(tmp_path, "one_process_on_two_hosts", "finish")
    assert job.codes == [0, 0], job.output[-6000:]
    assert reasons == {}
