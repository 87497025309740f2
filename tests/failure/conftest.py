import pytest

from lightning_sm._sagemaker.job import TrainingJob


@pytest.fixture
def job(tmp_path):
    return TrainingJob(in_container=True, failure_file=str(tmp_path / "output" / "failure"))
