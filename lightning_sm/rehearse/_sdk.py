"""What the SageMaker Python SDK sends: which launcher v2's hyperparameters mean, v3's command and driver scripts."""

import importlib.metadata
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._request import Distribution, RehearsalRequest

__all__ = [
    "MODEL_TRAINER_COMMAND",
    "PROCESSES_PER_HOST",
    "V3_DISTRIBUTIONS",
    "distribution_in_drivers",
    "distribution_of",
    "drivers_folder",
    "write_drivers",
]

#: The launchers that SDK v3's ``ModelTrainer`` has.
V3_DISTRIBUTIONS = (Distribution.NONE, Distribution.TORCH_DISTRIBUTED, Distribution.MPI)

#: ``ContainerEntrypoint`` and ``ContainerArguments`` of ``ModelTrainer``.
MODEL_TRAINER_COMMAND = (
    "/bin/bash",
    "-c",
    "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh",
)

#: The hyperparameter from which the toolkit takes the number of processes per host.
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"

# In the order in which the PyTorch toolkit checks them.
_FLAGS = (
    ("sagemaker_mpi_enabled", Distribution.MPI),
    ("sagemaker_pytorch_ddp_enabled", Distribution.PYTORCHDDP),
    ("sagemaker_torch_distributed_enabled", Distribution.TORCH_DISTRIBUTED),
    ("sagemaker_distributed_dataparallel_enabled", Distribution.SMDISTRIBUTED),
)

_V3_CODE = "/opt/ml/input/data/code"
_V3_DRIVERS = {
    Distribution.TORCH_DISTRIBUTED: ("Torchrun", "torchrun_driver.py"),
    Distribution.MPI: ("MPI", "mpi_driver.py"),
}


def distribution_of(hyperparameters: Mapping[str, str]) -> Distribution:
    """Return the launcher that the PyTorch toolkit chooses for these hyperparameter strings."""
    for flag, distribution in _FLAGS:
        if _is_true(hyperparameters.get(flag)):
            return distribution
    return Distribution.NONE


def _is_true(text: Optional[str]) -> bool:
    if text is None:
        return False
    try:
        return bool(json.loads(text))
    except ValueError:
        # The toolkit keeps text that is not JSON, and any text but the empty one is true.
        return bool(text)


def drivers_folder() -> Path:
    """Return the folder of driver scripts of ``sagemaker-train``, which is not imported (that takes seconds).

    Raises:
        RehearsalError: It is not installed.
    """
    try:
        found = importlib.metadata.distribution("sagemaker-train")
    except importlib.metadata.PackageNotFoundError:
        found = None
    folder = None if found is None else Path(str(found.locate_file("sagemaker/train/container_drivers")))
    if folder is None or not folder.is_dir():
        raise RehearsalError(
            "SDK v3's container drivers are not installed.",
            hint="pip install --no-deps sagemaker-train (the drivers need none of its dependencies, which are 1 GB)",
        )
    return folder


def write_drivers(target: Path, request: RehearsalRequest) -> None:
    """Write the channel ``sm_drivers`` as ``ModelTrainer`` uploads it.

    Raises:
        RehearsalError: The SDK is not installed, or has other script templates than version 1.27.
    """
    source = drivers_folder()
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    train, basic, distributed = _script_templates(source.parent / "templates.py")
    content: Dict[str, object] = {}
    run = basic
    if request.distribution is not Distribution.NONE:
        name, script = _V3_DRIVERS[request.distribution]
        run = distributed.format(driver_name=name, driver_script=script)
        extra = {"smp": None} if name == "Torchrun" else {"mpi_additional_options": request.mpi_options.split() or None}
        content = {"process_count_per_node": request.processes, **extra}
    script_text = train.format(working_dir=f"cd {_V3_CODE} \n", install_requirements="", execute_driver=run)
    (target / "sm_train.sh").write_text(script_text, encoding="utf-8")
    (target / "distributed.json").write_text(json.dumps(content), encoding="utf-8")
    source_code = {"source_dir": ".", "requirements": None, "entry_script": request.entry_point, "command": None}
    (target / "sourcecode.json").write_text(json.dumps(source_code), encoding="utf-8")


def distribution_in_drivers(drivers: Path) -> Distribution:
    """Return the launcher that a given channel ``sm_drivers`` starts."""
    script = (drivers / "sm_train.sh").read_text(encoding="utf-8")
    return next((name for name, (_, driver) in _V3_DRIVERS.items() if driver in script), Distribution.NONE)


def _script_templates(path: Path) -> Tuple[str, str, str]:
    spec = importlib.util.spec_from_file_location("_sagemaker_train_templates", path)
    try:
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        # The third name is misspelt in the SDK.
        return module.TRAIN_SCRIPT_TEMPLATE, module.EXECUTE_BASIC_SCRIPT_DRIVER, module.EXEUCTE_DISTRIBUTED_DRIVER
    except (OSError, AttributeError) as error:
        raise RehearsalError(
            f"{path} of the installed sagemaker-train does not have the expected script templates: {error}.",
            hint="pip install --no-deps 'sagemaker-train>=1.20'",
        ) from error
