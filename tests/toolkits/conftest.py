"""What rehearsals run, and the results of plain Lightning for the same model and data."""

import functools
from pathlib import Path

import pytest

from tests.helpers.processes import Job

from .running import fill_source

_SCRIPT = Path(__file__).parents[1] / "processes" / "train_each_way.py"


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Return a function: the results of Lightning's own DDP in a world of so many processes, run once for each size."""

    @functools.lru_cache(maxsize=None)
    def run(size):
        job = Job(tmp_path_factory.mktemp(f"plain{size}"), _SCRIPT, "lightning.pytorch", size, 1, "plain")
        return job.plain().results(size)[0]["ways"]["plain"]

    return run


@pytest.fixture
def source(tmp_path):
    """A source directory with what the rehearsals run."""
    return fill_source(tmp_path / "source")
