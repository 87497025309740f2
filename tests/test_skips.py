"""The list of what is skipped names tests that exist, and versions that a row has."""

import subprocess
import sys
from fnmatch import filter as filter_ids

import pytest

from tests.helpers.processes import ROOT
from tests.helpers.skips import SKIPS, installed_version
from tools.matrix.__main__ import paths_of
from tools.matrix.rows import ROWS

_TESTS = [test for test, *_ in SKIPS]


@pytest.fixture(scope="module")
def collected():
    """The ids of all tests in the files that the list names."""
    files = sorted({test.partition("::")[0] for test in _TESTS})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.full
@pytest.mark.skipif(installed_version("pytorch-lightning") < (2, 0), reason="what came later is not collected")
@pytest.mark.parametrize("test", _TESTS)
def test_each_entry_names_tests_that_exist(test, collected):
    assert filter_ids(collected, test), "no test has this name any more: remove the entry"


@pytest.mark.parametrize(("test", "distribution", "version", "reason"), SKIPS, ids=_TESTS)
def test_each_entry_applies_to_some_row_that_runs_the_test_and_not_to_all(test, distribution, version, reason):
    file = test.partition("::")[0]
    installed = [row.torch if distribution == "torch" else row.lightning for row in ROWS]
    runs = [any(f"{file}/".startswith(f"{path}/") for path in paths_of(row)) for row in ROWS]
    applies = [has and tuple(map(int, each.split(".")[:2])) < version for has, each in zip(runs, installed)]
    assert any(applies), "no row that runs the test lacks it: remove the entry"
    assert not all(applies), "no supported row runs these tests"
