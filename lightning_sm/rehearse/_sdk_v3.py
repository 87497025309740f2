"""What SDK v3's ``ModelTrainer`` uploads for a job: its container drivers, and the scripts that it generates."""

import importlib.metadata
import json
import runpy
import shutil
from operator import itemgetter
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.launch._settings import Distribution

__all__ = ["DRIVERS", "MODEL_TRAINER_COMMAND", "driver_scripts", "drivers_folder", "write_drivers"]

#: ``ContainerEntrypoint`` and ``ContainerArguments`` of ``ModelTrainer``.
MODEL_TRAINER_COMMAND = (
    "/bin/bash",
    "-c",
    "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh",
)

# The third name is misspelt in the SDK.
_TEMPLATES = ("TRAIN_SCRIPT_TEMPLATE", "EXECUTE_BASIC_SCRIPT_DRIVER", "EXEUCTE_DISTRIBUTED_DRIVER")
#: Name and script of the driver of each distribution.
DRIVERS: Dict[Distribution, Tuple[str, str]] = {
    "torch_distributed": ("Torchrun", "torchrun_driver.py"),
    "mpi": ("MPI", "mpi_driver.py"),
}


def drivers_folder() -> Path:
    """Return the folder of driver scripts of ``sagemaker-train``, which is not imported (that takes seconds).

    Raises:
        RehearsalError: It is not installed.
    """
    try:
        found = importlib.metadata.distribution("sagemaker-train")
    except importlib.metadata.PackageNotFoundError:
        raise RehearsalError(
            "SDK v3's container drivers are not installed.",
            hint="pip install --no-deps sagemaker-train (the drivers need none of its dependencies, which are 1 GB)",
        ) from None
    return Path(str(found.locate_file("sagemaker/train/container_drivers")))


def driver_scripts(
    distribution: Distribution, entry_point: str, *, processes: Optional[int], mpi_options: str
) -> Tuple[Tuple[str, str], ...]:
    """Return the files that ``ModelTrainer`` generates into the channel ``sm_drivers``: names and content.

    Args:
        distribution: ``none``, ``torch_distributed`` or ``mpi``.
        entry_point: The program.
        processes: Processes per host; ``None`` for the number of GPUs.
        mpi_options: More options of ``mpirun``.

    Raises:
        RehearsalError: The SDK is not installed, has other script templates, or no such launcher.
    """
    path = drivers_folder().parent / "templates.py"
    try:
        train, basic, distributed = itemgetter(*_TEMPLATES)(runpy.run_path(str(path)))
    except (OSError, KeyError) as error:
        raise RehearsalError(
            f"{path} of the installed sagemaker-train does not have the expected script templates: {error}.",
            hint="pip install --no-deps 'sagemaker-train>=1.20'",
        ) from error
    content: Dict[str, Any] = {}
    run = basic
    if distribution != "none":
        if distribution not in DRIVERS:
            raise RehearsalError(
                f"SDK v3 has no launcher for {distribution}.", hint=f"Use --sdk v2, or none, {', '.join(DRIVERS)}."
            )
        name, script = DRIVERS[distribution]
        run = distributed.format(driver_name=name, driver_script=script)
        extra = {"smp": None} if name == "Torchrun" else {"mpi_additional_options": mpi_options.split() or None}
        content = {"process_count_per_node": processes, **extra}
    source_code = {"source_dir": ".", "requirements": None, "entry_script": entry_point, "command": None}
    start = "cd /opt/ml/input/data/code \n"
    return (
        ("sm_train.sh", train.format(working_dir=start, install_requirements="", execute_driver=run)),
        ("distributed.json", json.dumps(content)),
        ("sourcecode.json", json.dumps(source_code)),
    )


def write_drivers(target: Path, scripts: Tuple[Tuple[str, str], ...]) -> None:
    """Write the channel ``sm_drivers`` as ``ModelTrainer`` uploads it.

    Raises:
        RehearsalError: The SDK is not installed.
    """
    shutil.copytree(drivers_folder(), target, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in scripts:
        (target / name).write_text(text, encoding="utf-8")
