import pytest

from lightning_sm._sagemaker.job import TrainingJob
from tests.failure.ranks import Cluster


@pytest.fixture
def job(tmp_path):
    return TrainingJob(in_container=True, failure_file=str(tmp_path / "output" / "failure"))


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.end()
    assert not made.server._thread.is_alive()
    assert not any(rank.monitor._thread.is_alive() for rank in made.ranks)
