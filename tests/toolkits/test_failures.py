"""The failure reason of a job in which one rank failed, or never came, with the real toolkit.

The program of the first two prints a ``ValueError``: from such a line on the toolkit takes the log for its reason.
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


def rehearsed(tmp_path, how, *options):
    source = fill_source(tmp_path / "source")
    shutil.copy(_PROGRAM, source)
    return rehearse(
        source,
        tmp_path / "out",
        *("--hosts", 2, *options, "--env", "MY_API_TOKEN=hunter2-hunter2", "--abort-after", "60s"),
        *("fail.py", "--how", how),
        exit_code=1,
        timeout=240,
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


# Trains with a hindrance, which stands in between.
_TRAIN = "import runpy, socket, time\n{}\nrunpy.run_path('train.py', run_name='__main__')\n"


@needs("netns", torch=True)
def test_the_main_port_in_use(source, tmp_path):
    (source / "late.py").write_text(_TRAIN.format("other = socket.create_server(('', 7777))"))
    done = rehearse(source, tmp_path / "out", "--hosts", 2, "--abort-after", "1s", "late.py", exit_code=1)
    # What torch says of it names no error that the toolkit knows, so the reason would be empty without us.
    said = "DistNetworkError: The server socket has failed to listen on any local network address. port: 7777"
    assert done.summary["failure_reason"].startswith(said)


@needs("netns", torch=True)
def test_a_host_that_never_comes_is_missing_in_the_summary(source, tmp_path):
    (source / "late.py").write_text(_TRAIN.format("if socket.gethostname() == 'algo-2': time.sleep(600)"))
    # The others say who they are before they begin to wait.
    stop = ("--stop-at", "lightning_sm topology:", "--stop-grace", "1s")
    done = rehearse(source, tmp_path / "out", "--hosts", 2, *stop, "late.py", exit_code=143)
    assert [(host, told["global_rank"], told["world_size"]) for host, told in done.topologies] == [("algo-1", 0, 2)]
