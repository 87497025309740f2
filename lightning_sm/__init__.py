"""Run any PyTorch Lightning project on Amazon SageMaker Training, on every launcher, unchanged.

Importing this package imports neither torch nor Lightning: public names are loaded on first use, and the strategy
``smddp``, the cluster environment and the rank of this process are registered with Lightning when that is imported.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any, List

from lightning_sm._register import register_on_import
from lightning_sm._sagemaker.in_job import is_in_job
from lightning_sm._version import __version__

if TYPE_CHECKING:
    from lightning_sm._auto import auto
    from lightning_sm._distributed.environment import SageMakerEnvironment
    from lightning_sm._observe.metrics import metric_definitions
    from lightning_sm._resume.fabric import latest_checkpoint
    from lightning_sm._sagemaker.hyperparameters import Hyperparameters
    from lightning_sm._sagemaker.job import Channel, InstanceGroup, TrainingJob
    from lightning_sm._sagemaker.topology import Launcher, Topology
    from lightning_sm._settings.options import SageMakerOptions
    from lightning_sm._trainer_defaults import fabric_settings, job, trainer_settings
    from lightning_sm.callbacks import ModelExport
    from lightning_sm.cli import SageMakerCLI
    from lightning_sm.strategies import (
        SMDDPDeepSpeedStrategy,
        SMDDPFSDPStrategy,
        SMDDPModelParallelStrategy,
        SMDDPPlugin,
        SMDDPStrategy,
        SMPFSDPStrategy,
        SMPStrategy,
        TorchrunXLAStrategy,
    )

__all__ = [
    "__version__",
    "Channel",
    "Hyperparameters",
    "InstanceGroup",
    "Launcher",
    "ModelExport",
    "SMDDPDeepSpeedStrategy",
    "SMDDPFSDPStrategy",
    "SMDDPModelParallelStrategy",
    "SMDDPPlugin",
    "SMDDPStrategy",
    "SMPFSDPStrategy",
    "SMPStrategy",
    "SageMakerCLI",
    "SageMakerEnvironment",
    "SageMakerOptions",
    "Topology",
    "TorchrunXLAStrategy",
    "TrainingJob",
    "auto",
    "fabric_settings",
    "job",
    "latest_checkpoint",
    "metric_definitions",
    "trainer_settings",
]

# The module that defines each public name.
_MODULES = {
    "Channel": "_sagemaker.job",
    "Hyperparameters": "_sagemaker.hyperparameters",
    "InstanceGroup": "_sagemaker.job",
    "Launcher": "_sagemaker.topology",
    "ModelExport": "callbacks",
    "SMDDPDeepSpeedStrategy": "strategies",
    "SMDDPFSDPStrategy": "strategies",
    "SMDDPModelParallelStrategy": "strategies",
    "SMDDPPlugin": "strategies",
    "SMDDPStrategy": "strategies",
    "SMPFSDPStrategy": "strategies",
    "SMPStrategy": "strategies",
    "SageMakerCLI": "cli",
    "SageMakerEnvironment": "_distributed.environment",
    "SageMakerOptions": "_settings.options",
    "Topology": "_sagemaker.topology",
    "TorchrunXLAStrategy": "strategies",
    "TrainingJob": "_sagemaker.job",
    "auto": "_auto",
    "fabric_settings": "_trainer_defaults",
    "job": "_trainer_defaults",
    "latest_checkpoint": "_resume.fabric",
    "metric_definitions": "_observe.metrics",
    "trainer_settings": "_trainer_defaults",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> List[str]:
    return sorted(__all__)


register_on_import()
if is_in_job(os.environ):
    # Before the script parses its arguments.
    from lightning_sm._failure import report_uncaught

    report_uncaught()
