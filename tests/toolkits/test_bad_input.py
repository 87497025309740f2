"""Jobs whose process group cannot be formed end in bounded time with a reason.

``tests/rehearse`` has what is refused before anything starts (a port in use, ``mpi4py`` missing).
"""

import importlib.util

import pytest

from tests.helpers.rehearsal import needs

from .running import rehearse

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]


@needs("netns", torch=True, v3=True)
def test_a_main_host_whose_name_never_resolves(source, tmp_path):
    # Under SDK v3 nobody waits for names but us.
    done = rehearse(
        source,
        tmp_path / "out",
        *("--sdk", "v3", "--hosts", 2, "--abort-after", "1s"),
        *("train_baseline.py", "--way", "impatient", "--hosts", 2),
    )
    assert done.exit_code == 1
    said = "TopologyError: The main host 'algo-1' (by SM_MASTER_ADDR) did not resolve within 3 seconds"
    assert done.summary["failure_reason"].startswith(said)
    first, second = done.summary["attempts"][0]["hosts"]
    assert (first["ended_because"], second["exit_code"]) == ("another host failed", 1)


@needs("netns", torch=True)
def test_the_main_port_in_use(source, tmp_path):
    done = rehearse(
        source,
        tmp_path / "out",
        *("--hosts", 2, "--abort-after", "1s", "train_baseline.py", "--way", "ours", "--occupy", 7777),
    )
    assert done.exit_code == 1
    # What torch says of it names no error that the toolkit knows, so the reason would be empty without us.
    said = "DistNetworkError: The server socket has failed to listen on any local network address. port: 7777"
    assert done.summary["failure_reason"].startswith(said)


@needs("netns", torch=True)
def test_a_host_that_never_comes_is_missing_in_the_summary(source, tmp_path):
    # The others say who they are before they begin to wait.
    stop = ("--stop-at", "lightning_sm topology:", "--stop-grace", "1s")
    done = rehearse(
        source, tmp_path / "out", "--hosts", 2, *stop, "train_baseline.py", "--way", "ours", "--missing", "algo-2"
    )
    assert done.exit_code == 143
    assert [(host, told["global_rank"], told["world_size"]) for host, told in done.topologies] == [("algo-1", 0, 2)]
