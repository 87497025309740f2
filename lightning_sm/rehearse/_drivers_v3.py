"""What SDK v3's ``ModelTrainer`` brings into a container: driver scripts, from the installed ``sagemaker-train``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Dict, Tuple

from ._errors import RehearsalError
from ._request import RehearsalRequest

__all__ = ["COMMAND", "distribution_in", "drivers_folder", "write_drivers"]

#: As ``ModelTrainer`` sends ``ContainerEntrypoint`` and ``ContainerArguments``.
COMMAND = (
    "/bin/bash",
    "-c",
    "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh",
)

_CODE = "/opt/ml/input/data/code"
_DRIVERS = {"torch_distributed": ("Torchrun", "torchrun_driver.py"), "mpi": ("MPI", "mpi_driver.py")}


def drivers_folder() -> Path:
    """Where the installed SDK keeps the scripts. The SDK itself is not imported: that takes seconds.

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
        RehearsalError: The SDK is not installed, or does not have the template of its script where 1.27 has it.
    """
    source = drivers_folder()
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    train, basic, distributed = _templates(source.parent / "templates.py")
    content: Dict[str, object] = {}
    run = basic
    if request.distribution != "none":
        name, script = _DRIVERS[request.distribution]
        run = distributed.format(driver_name=name, driver_script=script)
        extra = {"smp": None} if name == "Torchrun" else {"mpi_additional_options": request.mpi_options.split() or None}
        content = {"process_count_per_node": request.processes, **extra}
    script_text = train.format(working_dir=f"cd {_CODE} \n", install_requirements="", execute_driver=run)
    (target / "sm_train.sh").write_text(script_text, encoding="utf-8")
    (target / "distributed.json").write_text(json.dumps(content), encoding="utf-8")
    source_code = {"source_dir": ".", "requirements": None, "entry_script": request.entry_point, "command": None}
    (target / "sourcecode.json").write_text(json.dumps(source_code), encoding="utf-8")


def distribution_in(drivers: Path) -> str:
    """Which launcher a channel ``sm_drivers`` of somebody else's request starts."""
    script = (drivers / "sm_train.sh").read_text(encoding="utf-8")
    return next((name for name, (_, driver) in _DRIVERS.items() if driver in script), "none")


def _templates(path: Path) -> Tuple[str, str, str]:
    spec = importlib.util.spec_from_file_location("_sagemaker_train_templates", path)
    try:
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        # The third name is spelt so in the SDK.
        return module.TRAIN_SCRIPT_TEMPLATE, module.EXECUTE_BASIC_SCRIPT_DRIVER, module.EXEUCTE_DISTRIBUTED_DRIVER
    except (OSError, AttributeError) as error:
        raise RehearsalError(
            f"{path} of the installed sagemaker-train is not as expected: {error}.",
            hint="pip install --no-deps 'sagemaker-train>=1.20'",
        ) from error
