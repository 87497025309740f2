import itertools

import pytest

from tests.fits.jobs import Job
from tests.helpers.accelerator import ON_GPU
from tests.helpers.processes import ROOT
from tools.faults.server import Server


@pytest.fixture(scope="session")
def server():
    """Starts processes that have imported torch and Lightning already."""
    server = Server("pytorch_lightning", ROOT)
    yield server
    server.end()


@pytest.fixture
def job(server, tmp_path):
    """Return a function that makes a job of a program."""
    numbers = itertools.count()

    def make(*programs, **more):
        if ON_GPU and more.get("processes", 1) > 1:
            pytest.skip("one GPU is for one process of a host")
        return Job(server, tmp_path / f"job-{next(numbers)}", *programs, **more)

    return make


@pytest.fixture(scope="session")
def whole(server, tmp_path_factory):
    """Return a function that runs a job without an interruption, once for all tests that ask for it."""
    known = {}

    def run(*programs, **more):
        key = repr((programs, sorted(more.items())))
        if key not in known:
            known[key] = Job(server, tmp_path_factory.mktemp("whole"), *programs, **more).run().ended()
        return known[key]

    return run
