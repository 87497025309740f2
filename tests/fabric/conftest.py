"""Starts the program of these tests, and gives the weights of plain Fabric."""

from pathlib import Path

import pytest

from lightning_sm._lightning import FABRICS, SupportLevel, support_level
from tests.helpers.processes import Job

SCRIPT = Path(__file__).parent / "train.py"
NAMESPACES = [each.name for each in FABRICS if each.is_installed and support_level(each) > SupportLevel.CORE]
collect_ignore_glob = [] if NAMESPACES else ["test_*.py"]


def job(folder, *words, namespace=None, **variables):
    """The program as a job, which is in the lighter one of Fabric's namespaces by default."""
    variables = {"LIGHTNING_SM_AUTO": "0", **variables}
    return Job(folder, SCRIPT, "--namespace", namespace or NAMESPACES[-1], *words, **variables)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The weights of plain Fabric in two processes."""
    words = ("--how", "plain", "--devices", 2)
    first, second = job(tmp_path_factory.mktemp("plain"), *words).torchrun(1, 2).results(2)
    assert first["weights"] == second["weights"]
    assert first["strategy"] == "DDPStrategy"
    return first["weights"]
