import pytest

from lightning_sm._sagemaker.job import TrainingJob
from tests.failure.ranks import Cluster


@pytest.fixture
def job(tmp_path):
    return TrainingJob(in_container=True, failure_file=str(tmp_path / "output" / "failure"))


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.end()
