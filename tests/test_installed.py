import os
import sys

import pytest
import torch

from lightning_sm._installed import is_installed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (os.__file__, True),
        (torch.__file__, True),
        (__file__, False),
        (os.path.join(sys.prefix, "src", "app", "train.py"), False),
        (os.path.join(sys.base_prefix, "src", "app", "train.py"), False),
    ],
)
def test_what_is_installed_and_what_is_the_projects(path, expected):
    assert is_installed(path) == expected
