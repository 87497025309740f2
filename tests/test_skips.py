"""The list of what is skipped names tests that exist, and versions that a row has."""

import subprocess
import sys

import pytest

from tests.helpers.processes import ROOT
from tests.helpers.skips import SKIPS, installed_version
from tools.matrix.__main__ import paths_of
from tools.matrix.rows import ROWS

_IDS = [skip.test for skip in SKIPS]


def _torch(row):
    major, minor = row.torch.split(".")[:2]
    return int(major), int(minor)


@pytest.fixture(scope="module")
def collected():
    """The ids of all tests in the files that the list names."""
    files = sorted({skip.test.partition("::")[0] for skip in SKIPS})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.full
@pytest.mark.skipif(installed_version("pytorch-lightning") < (2, 0), reason="what came later is not collected")
@pytest.mark.parametrize("skip", SKIPS, ids=_IDS)
def test_each_entry_names_tests_that_exist(skip, collected):
    assert [test for test in collected if skip.matches(test)], "no test has this name any more: remove the entry"


@pytest.mark.parametrize("skip", SKIPS, ids=_IDS)
def test_each_entry_applies_to_some_row_that_runs_the_test_and_not_to_all(skip):
    file = skip.test.partition("::")[0]
    runs = [any(f"{file}/".startswith(f"{path}/") for path in paths_of(row)) for row in ROWS]
    applies = [has and skip.lacks(row.version, _torch(row)) for has, row in zip(runs, ROWS)]
    assert any(applies), "no row that runs the test lacks it: remove the entry"
    assert not all(applies), "no supported row runs these tests"
