import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from lightning_sm._failure._watching import stop_watching
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.rank_zero import rank_zero_onlys
from tests.matrix.skips import SKIPS, installed_version

# What libraries set for good when they are imported or seeded.
_MAY_STAY = (
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "KMP_",
    "CUDA_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "PYTEST_",
    "COV_",
    "PYTORCH_NVML_",
    "OMP_NUM_",
)
# How fast values are made depends on what else the machine does, and says nothing about our code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


def pytest_collection_modifyitems(items):
    """Skip by name what the installed versions cannot pass."""
    versions = installed_version("pytorch-lightning"), installed_version("torch")
    for skip in (entry for entry in SKIPS if entry.lacks(*versions)):
        for item in items:
            if skip.matches(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"{item.name}: {skip.reason}"))


@pytest.fixture(autouse=True)
def clean_process():
    """Start each test outside any job, restore what it changed, and fail it if it left variables or groups behind."""
    found = dict(os.environ)
    os.environ.clear()
    os.environ.update(without_launcher(found))
    before = dict(os.environ)
    ranks = [(function, getattr(function, "rank", None)) for function in rank_zero_onlys()]
    yield
    stop_watching()
    after = dict(os.environ)
    os.environ.clear()
    os.environ.update(found)
    for function, rank in ranks:
        function.rank = rank
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    leaked = {name for name in changed if not name.startswith(_MAY_STAY)}
    distributed = sys.modules.get("torch.distributed")
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if has_group:
        distributed.destroy_process_group()
    assert not leaked, f"the test left these variables behind: {sorted(leaked)}"
    assert not has_group, "the test left a process group behind"


@pytest.fixture
def opt_ml(tmp_path):
    """A base directory as SageMaker's ``/opt/ml``, whose files the test writes."""
    return OptMl(tmp_path / "opt-ml")


@pytest.fixture
def in_environ(monkeypatch):
    """Return a function that sets variables for the length of the test."""

    def set_variables(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables
