import os

import pytest

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.routed import may_replace


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, True),
        ("", True),
        ("logs", True),
        ("/data", True),
        ("~/data", True),
        ("{base}x", True),
        ("{base}/code", True),
        ("{base}/code/data", True),
        ("{base}/input/../code/data", True),
        ("{base}/input/data/training", False),
        ("{base}/input/data/training/..", False),
        ("s3://bucket/key", False),
        ("file:///data", False),
    ],
)
def test_may_replace(tmp_path, value, expected):
    base = tmp_path / "ml"
    job = TrainingJob(in_container=True, base_dir=str(base))
    assert may_replace(value and value.format(base=base), job) is expected


def test_a_link_to_the_base_directory_is_the_base_directory(tmp_path):
    (tmp_path / "ml" / "data").mkdir(parents=True)
    os.symlink(tmp_path / "ml", tmp_path / "link")
    job = TrainingJob(in_container=True, base_dir=str(tmp_path / "ml"))
    assert not may_replace(str(tmp_path / "link" / "data"), job)
