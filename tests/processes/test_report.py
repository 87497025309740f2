"""Rank 0 reports the failure of another rank, also when it has to be ended because it is blocked."""

import pytest

from tests.processes.test_failures import run
from tests.report.made_up import Page

pytestmark = [pytest.mark.processes, pytest.mark.jobs]


@pytest.mark.parametrize(
    ("launch", "how"),
    [("torchrun_two_hosts", "raise"), ("mpirun", "raise"), ("one_process_on_two_hosts", "exit"),
     ("torchrun_two_hosts", "blocked")],
)  # fmt: skip
def test_rank_zero_reports_the_failure_of_another_rank(tmp_path, launch, how):
    job, reasons = run(tmp_path, launch, how)
    found = list(tmp_path.glob("*/output/data/report.html"))
    assert [path.parts[-4] for path in found] == ["algo-1"], job.output[-6000:]
    page = Page(found[0].read_text(encoding="utf-8"))
    assert " failed " in page.shown
    assert reasons["algo-1"] in page.shown
    assert "(rank 1 on " in page.shown
    assert ["processes", "2"] in page.rows
    assert ["backend", "gloo"] in page.rows


def test_a_fit_of_two_processes_is_reported_once(tmp_path):
    job, _ = run(tmp_path, "one_process_on_two_hosts", "finish")
    (found,) = tmp_path.glob("*/output/data/report.html")
    assert "completed 1 epoch" in Page(found.read_text(encoding="utf-8")).shown
    assert job.output.count("Wrote the report of the fit") == 1
