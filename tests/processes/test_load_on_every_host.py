"""A checkpoint that is on the main host only is tested, validated and predicted with on both hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import ROOT, Job

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "load_on_every_host.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    probe = "from tests.processes.load_on_every_host import mount_own; mount_own('.', '.')"
    command = [sys.executable, "-c", probe]
    if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode != 0:
        pytest.skip("a folder per process needs mount namespaces, which this machine does not allow")
    job = Job(folder, _SCRIPT, installed_namespaces()[0].name)
    return job.torchrun(2, 1).results(2)


def test_only_the_main_host_has_files(results):
    assert [result["hosts"] for result in results] == [2, 2]
    assert {"best.ckpt", "last.ckpt"} <= set(results[0]["files"])
    assert results[1]["files"] == []


@pytest.mark.parametrize("which", ["best", "last", "path", "another version"])
def test_both_hosts_load_it(results, which):
    assert results[0][which]["weights"] == results[1][which]["weights"]
    assert results[0][which]["weights"] == results[0]["saved"]["last" if which == "last" else "best"]


def test_it_has_them_then(results):
    assert set(results[1]["files in the end"]) == set(results[0]["files"])


def test_a_host_that_cannot_write_is_an_error_on_both(results):
    for result in results:
        assert "best.ckpt is not on every host, and could not be sent (global_rank 1: " in result["read only"]["error"]
