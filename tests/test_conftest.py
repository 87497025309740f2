import os
import subprocess
import sys

import pytest

from tests.helpers.processes import ROOT

_TESTS = """
import subprocess, sys
import tests.conftest

tests.conftest._SECONDS = 0

def start(code, **options):
    return subprocess.Popen([sys.executable, "-c", f"import subprocess, sys, time; {code}"], **options)

def test_of_its_own_session_and_variables():
    start("time.sleep(%d.1)", env={}, start_new_session=True)

def test_of_a_parent_that_is_gone():
    start("subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(%d.2)'])").wait()

def test_nothing():
    start("pass")
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are listed by /proc")
def test_a_run_that_leaves_processes_behind_fails_and_ends_them(tmp_path):
    # A number that no other process has on its command line.
    seconds = 10_000_000 + os.getpid()
    (tmp_path / "test_leaves.py").write_text(_TESTS % (seconds, seconds))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    # It is a run of its own, and not a worker of this one.
    environ.pop("PYTEST_XDIST_WORKER", None)
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stdout
    assert "3 passed" in ended.stdout
    left = ended.stdout.partition("processes that the tests left behind")[2]
    assert f"{seconds}.1" in left
    assert f"{seconds}.2" in left
    listed = subprocess.run(["ps", "-A", "-o", "args="], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"sleep({seconds}" not in listed
