"""Jobs whose process group cannot be formed end in bounded time with a reason.

``tests/rehearse`` has what is refused before anything starts (``mpi4py`` missing).
"""

import pytest

from tests.helpers.rehearsal import needs

from .running import rehearse

pytestmark = pytest.mark.full

# Trains with a hindrance, which stands in between.
_TRAIN = "import runpy, socket, time\n{}\nrunpy.run_path('train.py', run_name='__main__')\n"


@needs("netns", torch=True)
def test_the_main_port_in_use(source, tmp_path):
    (source / "late.py").write_text(_TRAIN.format("other = socket.create_server(('', 7777))"))
    done = rehearse(source, tmp_path / "out", "--hosts", 2, "--abort-after", "1s", "late.py")
    assert done.exit_code == 1
    # What torch says of it names no error that the toolkit knows, so the reason would be empty without us.
    said = "DistNetworkError: The server socket has failed to listen on any local network address. port: 7777"
    assert done.summary["failure_reason"].startswith(said)


@needs("netns", torch=True)
def test_a_host_that_never_comes_is_missing_in_the_summary(source, tmp_path):
    (source / "late.py").write_text(_TRAIN.format("if socket.gethostname() == 'algo-2': time.sleep(600)"))
    # The others say who they are before they begin to wait.
    stop = ("--stop-at", "lightning_sm topology:", "--stop-grace", "1s")
    done = rehearse(source, tmp_path / "out", "--hosts", 2, *stop, "late.py")
    assert done.exit_code == 143
    assert [(host, told["global_rank"], told["world_size"]) for host, told in done.topologies] == [("algo-1", 0, 2)]
