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
        ("{link}/data", False),
        ("s3://bucket/key", False),
        ("file:///data", False),
    ],
)
def test_may_replace(tmp_path, value, expected):
    base = tmp_path / "ml"
    job = TrainingJob(in_container=True, base_dir=str(base))
    os.symlink(base, tmp_path / "link")
    assert may_replace(value and value.format(base=base, link=tmp_path / "link"), job) is expected
