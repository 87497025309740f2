"""The device of these tests, and the table that a run of them prints."""

import functools
from datetime import date

import pytest
import torch

from tests.helpers.processes import Job


@pytest.fixture(params=["cuda", "cpu"])
def device(request):
    """A GPU, and the CPU, on which the same parts run without one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    return request.param


@pytest.fixture(scope="session")
def played(tmp_path_factory):
    """Return a function: what a part of ``train.py`` found in processes of its own, played once for all tests."""

    @functools.lru_cache(maxsize=None)
    def run(part, device, *words, world_size=1):
        accelerator = {"cuda": "gpu"}.get(device, device)
        variables = {"TESTS_ACCELERATOR": accelerator, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        job = Job(tmp_path_factory.mktemp(part), "tests.gpu.train", part, *words, timeout=500, **variables)
        results = job.torchrun(world_size, 1).results(world_size)
        return results if world_size > 1 else results[0]

    return run


def pytest_terminal_summary(terminalreporter):
    """Print one row for each test, for docs/verified.md."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        and report.nodeid.startswith("tests/gpu/")
        and (report.when == "call" or report.outcome != "passed")
    ]
    if not reports:
        return
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    terminalreporter.section(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, {date.today()}")
    terminalreporter.write_line("| What | Outcome | Figures |\n|---|---|---|")
    for report in sorted(reports, key=lambda report: report.nodeid):
        figures = ", ".join(f"{key} {value}" for key, value in report.user_properties)
        why = report.longrepr[2].partition("Skipped: ")[2] if report.skipped else figures
        terminalreporter.write_line(f"| {report.nodeid.partition('::test_')[2]} | {report.outcome} | {why} |")
