from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """What Lightning's own DDP makes of the same model, data and world size, as a dict of its results."""
    namespace = installed_namespaces()[0].name
    job = Job(tmp_path_factory.mktemp("plain"), HERE / "train_each_way.py", namespace, 2, 1, "plain")
    return job.plain().results(2)[0]["ways"]["plain"]
