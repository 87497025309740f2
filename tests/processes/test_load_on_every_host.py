"""A checkpoint that is on the main host only is tested, validated and predicted with on both hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import ROOT, Job

pytestmark = [pytest.mark.processes, pytest.mark.jobs]

_SCRIPT = Path(__file__).parent / "load_on_every_host.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "tmp").mkdir()
    probe = "from tests.processes.load_on_every_host import mount_own; mount_own('.', '.')"
    command = [sys.executable, "-c", probe]
    if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode != 0:
        pytest.skip("a folder per process needs mount namespaces, which this machine does not allow")
    job = Job(folder, _SCRIPT, installed_namespaces()[0].name, TMPDIR=folder / "tmp")
    return job.torchrun(2, 1).results(2)


def test_only_the_main_host_has_files(results):
    assert [result["hosts"] for result in results] == [2, 2]
    assert {"best.ckpt", "last.ckpt"} <= set(results[0]["files"])
    assert results[1]["files"] == []


@pytest.mark.parametrize("which", ["best", "last", "path", "another version"])
def test_both_hosts_load_it(results, which):
    if which == "last" and "last" not in results[0]:
        pytest.skip("Lightning knows 'last' since 1.7")
    assert results[0][which]["weights"] == results[1][which]["weights"]
    assert results[0][which]["weights"] == results[0]["saved"]["last" if which == "last" else "best"]


def test_nothing_is_left_behind(results):
    assert results[1]["files in the end"] == ["best.ckpt"]  # the other version, which the test wrote
    assert results[0]["left"] == results[1]["left"] == []


def test_what_is_too_large_is_an_error_on_both(results):
    for result in results:
        error = result["too large"]["error"]
        assert "bytes exceed the limit of 10 for a broadcast. HINT: Run the test in a job with one host" in error


def test_a_host_without_room_is_an_error_on_both(results):
    assert "another host could not receive it (see its log)" in results[0]["no room"]["error"]
    assert "global_rank 1 could not receive it ([Errno 20] Not a directory" in results[1]["no room"]["error"]
