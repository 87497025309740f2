"""The failure reason of a job in which one rank failed, with the real toolkit.

The program prints a ``ValueError`` first: from such a line on the toolkit takes the log for its failure reason.
"""

import shutil
from pathlib import Path

import pytest

from tests.helpers.rehearsal import needs

from .running import fill_source, rehearse

pytestmark = pytest.mark.full

_PROGRAM = Path(__file__).parents[1] / "processes" / "fail.py"
_TORCHRUN, _MPI = ("--distribution", "torch_distributed"), ("--distribution", "mpi")
_KILLED = "Rank 1 on algo-2 was killed: it exited without an exception (SIGKILL, "


def rehearsed(tmp_path, how, *options, abort_after="60s", timeout=240):
    source = fill_source(tmp_path / "source")
    shutil.copy(_PROGRAM, source)
    return rehearse(
        source,
        tmp_path / "out",
        *("--hosts", 2, *options, "--env", "MY_API_TOKEN=hunter2-hunter2", "--abort-after", abort_after),
        *("fail.py", "--how", how),
        timeout=timeout,
    )


@needs("netns", torch=True)
def test_a_rank_that_gloo_aborts(tmp_path):
    # The toolkit calls the end of that host a success; its failure file tells otherwise.
    done = rehearsed(tmp_path, "crash", *_TORCHRUN)
    first, second = done.summary["hosts"]
    assert first["exit_code"] == 1, done.log[-6000:]
    assert done.summary["failure_reason"].startswith(_KILLED)
    assert second["failure"].startswith(_KILLED)


@needs("netns", torch=True, mpi=True)
def test_a_rank_on_a_worker_host_of_mpirun(tmp_path):
    # Without the entry point the toolkit knows of nothing there, waits for minutes and calls it a success.
    done = rehearsed(tmp_path, "raise", *_MPI)
    # A toolkit that still waits for the other host when nothing runs any more is ended by the entry point.
    first, second = done.summary["hosts"]
    assert first["exit_code"] in (1, 137), done.log[-6000:]
    assert second["exit_code"] == 137, done.log[-6000:]
    line = 1 + _PROGRAM.read_text().splitlines().index('        {}["layers"]')
    for reason in (done.summary["failure_reason"], first["failure"], second["failure"]):
        assert reason.startswith("KeyError: 'layers' (rank 1 on algo-2; at ")
        assert reason.endswith(f"fail.py:{line} in fail; then RuntimeError: no layers, said the owner of ***)")
