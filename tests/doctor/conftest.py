import shutil
import sysconfig
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from lightning_sm._doctor import CHECKS, Machine, examine
from tests.helpers.opt_ml import OptMl, group

#: As the kernel and the driver of ml.p4d.24xlarge write them in AWS's image.
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sun May 12 19:39:15 UTC 2024\nGCC version: 7\n"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


class Host:
    """A host of a training job: files below ``root``, SageMaker's own below ``opt_ml``, and its variables."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "root"
        self.opt_ml = OptMl(tmp_path / "ml").host("algo-1")
        self.opt_ml.write("checkpointconfig.json", {"LocalPath": str(tmp_path / "ml" / "checkpoints")})
        self.environ = {"TRAINING_JOB_NAME": "job-1"}
        self.kept = ExitStack()
        # Of every file system; not what that of the machine is that runs the tests.
        self.disk = SimpleNamespace(free=100e9, total=100e9)

    def file(self, path, text=""):
        """Write a file below the root of the host."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def code(self, text, name="data.py"):
        """Write a file of the project."""
        folder = self.opt_ml.base / "code"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return self

    def torch(self, version, cuda=None):
        """Install torch, as far as the doctor reads it."""
        place = f"{sysconfig.get_paths()['purelib']}/torch/version.py"
        text = f"from typing import Optional\n\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
        return self.file(place, text)

    def two_hosts(self, current="algo-1", kind="ml.p4d.24xlarge", **more):
        """Make it one of two hosts, of an instance type."""
        groups = (group("homogeneousCluster", "algo-1", "algo-2", instance_type=kind),)
        self.opt_ml.host(current, "algo-1", "algo-2", groups=groups, current_instance_type=kind, **more)
        return self

    def gpus(self, driver=DRIVER, version="535.183.01"):
        """Give it the GPUs of ml.p4d.24xlarge, as its container shows them."""
        for each in range(8):
            self.file(f"/dev/nvidia{each}")
        return self.file("/proc/driver/nvidia/version", driver.format(version))

    def channel(self, **settings):
        """Give it the channel ``training``, with settings of ``inputdataconfig.json``."""
        self.opt_ml.write("inputdataconfig.json", {"training": {"TrainingInputMode": "File", **settings}})
        return self

    @property
    def machine(self):
        return Machine.read({**self.opt_ml.variables, **self.environ}, root=self.root)

    def findings(self, check=None):
        """All findings, or those of one check."""
        return [each for each in examine(CHECKS, self.machine) if check is None or each.check == check]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """One host of one job, with nothing wrong."""
    examined = Host(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: examined.disk)
    with examined.kept:
        yield examined
