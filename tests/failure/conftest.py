import pytest

from tests.failure.ranks import Cluster


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.end()
