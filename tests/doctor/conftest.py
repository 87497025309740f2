import sys

import pytest

from lightning_sm._doctor import SECTIONS, network_checks
from lightning_sm._doctor.command import examine
from lightning_sm._doctor.finding import Machine
from tests.helpers.opt_ml import OptMl


class Examined:
    """A host with traps set: files below ``root``, SageMaker's own below ``opt_ml``."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "root"
        self.root.mkdir()
        self.opt_ml = OptMl(tmp_path / "ml")
        (self.opt_ml.base / "checkpoints").mkdir()
        # A port of its own: others of this machine use the default.
        self.environ = {"TRAINING_JOB_NAME": "job-1", "SM_MASTER_PORT": "7791"}
        self.is_here = True
        self._kept = []

    def file(self, path, text=""):
        """Write a file below the root of the host."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def keep(self, closeable):
        """Close something when the test has ended."""
        self._kept.append(closeable)

    def close(self):
        for closeable in self._kept:
            closeable.close()

    @property
    def machine(self):
        config_dir = None if self.is_here else str(self.opt_ml.config)
        return Machine.read({**self.opt_ml.variables, **self.environ}, root=self.root, config_dir=config_dir)

    def findings(self, check=None):
        """All findings, or those of one check."""
        found = [each for section in examine(SECTIONS, self.machine).values() for each in section]
        return [each for each in found if check is None or each.check == check]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """One host of one job, with nothing wrong that the tests know of."""
    # The name server of the machine that runs the tests may take its time for names that it does not know.
    monkeypatch.setattr(network_checks, "_NAME_TIMEOUT", 0.5)
    for name in [name for name in sys.modules if name.partition(".")[0] == "smdistributed"]:
        monkeypatch.delitem(sys.modules, name)  # the stand-in of another test
    examined = Examined(tmp_path)
    examined.opt_ml.host("algo-1")
    yield examined
    examined.close()
