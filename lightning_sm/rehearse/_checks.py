"""What is refused before anything starts, and in what the rehearsal of a request differs from SageMaker."""

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Iterator, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._plan import container_path, scripts_path
from lightning_sm.rehearse._request import HOMOGENEOUS_CLUSTER, Distribution, Isolation, RehearsalRequest, Sdk
from lightning_sm.rehearse._sdk import PROCESSES_PER_HOST, drivers_folder

__all__ = ["check_entry_point", "check_port", "check_software", "differences"]

_MASTER_PORT = 7777
_ACCELERATED = ("ml.p", "ml.g", "ml.trn")


def check_software(request: RehearsalRequest) -> None:
    """Check that everything that this launcher runs is installed.

    Raises:
        RehearsalError: Something is missing; the message names it and the extra or package that contains it.
    """
    path = scripts_path(os.environ.get("PATH", os.defpath))
    if request.sdk is Sdk.V2:
        for module in ("sagemaker_training", "sagemaker_pytorch_container"):
            if importlib.util.find_spec(module) is None:
                raise _not_installed(f"SageMaker's training toolkit (module {module})")
    elif request.code is not None:
        drivers_folder()
    if request.distribution is Distribution.TORCH_DISTRIBUTED and shutil.which("torchrun", path=path) is None:
        raise RehearsalError("torchrun is not installed.", hint="It is a part of torch: pip install torch")
    if not request.distribution.uses_mpirun:
        return
    if importlib.util.find_spec("mpi4py") is None:
        raise _not_installed("mpi4py, through which the mpirun launchers start the program,")
    if importlib.util.find_spec("paramiko") is None:
        raise _not_installed("paramiko, with which the hosts connect to each other,")
    for command, package in (("mpirun", "openmpi-bin"), ("sshd", "openssh-server"), ("ssh-keygen", "openssh-client")):
        if shutil.which(command, path=path) is None:
            raise RehearsalError(f"{command} is not installed.", hint=f"On Debian and Ubuntu: apt install {package}")


def check_entry_point(request: RehearsalRequest) -> None:
    """Check that the launcher can start this kind of entry point.

    Raises:
        RehearsalError: It is a shell script, or a package, under a launcher that takes only ``.py``.
    """
    name = request.entry_point
    if name is None:
        return
    if name.startswith(("/", "-")) or ".." in Path(name).parts or " " in name:
        raise RehearsalError(
            f"The toolkit refuses the entry point {name!r}.",
            hint="Give a path relative to --source-dir, without blanks.",
        )
    if request.sdk is Sdk.V3 and not name.endswith((".py", ".sh")):
        raise RehearsalError(f"SDK v3 refuses the entry point {name!r}.", hint="It must end in .py or .sh.")
    if request.distribution is not Distribution.TORCH_DISTRIBUTED:
        return
    if not name.endswith(".py"):
        raise RehearsalError(
            f"torchrun cannot start {name!r}: torch_distributed takes only a Python file.",
            hint="Give a .py entry point, or use --distribution none for a shell script.",
        )
    if request.sdk is Sdk.V2 and request.code is not None and (request.code / "setup.py").exists():
        raise RehearsalError(
            f"{request.code / 'setup.py'} makes the source directory a package, which torch_distributed refuses.",
            hint="Move setup.py out of the source directory, or use pyproject.toml.",
        )


def check_port(host: str = "127.0.0.1", port: int = _MASTER_PORT) -> None:
    """Check that the master port of the toolkit's launchers is free; loopback hosts share ports with the machine.

    Raises:
        RehearsalError: Something listens there already.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RehearsalError(
                f"Port {port} is in use ({error.strerror}), and the toolkit's launchers always use it.",
                hint="End the other program (another rehearsal?), or use --isolation userns or netns.",
            ) from error


def _not_installed(what: str) -> RehearsalError:
    return RehearsalError(
        f"{what} is not installed for {sys.executable}.", hint="pip install 'lightning-sm[rehearse]' (needs gcc)"
    )


def differences(request: RehearsalRequest, isolation: Isolation) -> Tuple[str, ...]:
    """Return a sentence for each thing that works here and not on SageMaker, or the other way."""
    return (
        *_of_isolation(request, isolation),
        *(_of_v3(request) if request.sdk is Sdk.V3 else _of_v2(request)),
        *_of_launcher(request),
        *_of_channels(request),
    )


def _of_isolation(request: RehearsalRequest, isolation: Isolation) -> Iterator[str]:
    if isolation.is_namespaced:
        yield "Hosts have no route to the internet: downloads and a program's own pip install fail only here."
    else:
        yield (
            "Hosts share this machine's file system, /tmp, host name and ports; on SageMaker they share nothing. "
            "A file that one host writes outside its base directory is visible to the others only here."
        )
        yield "/opt/ml is moved by SAGEMAKER_BASE_DIR: a program that names /opt/ml literally fails only here."
        yield "Hosts are named 127.0.0.K; on SageMaker algo-K, which socket.gethostname() returns too."
        if request.channels:
            yield "Channels are links to your own folders: a program that writes into one changes your data."
    if isolation is Isolation.USERNS:
        yield "Outside /opt, /etc and /tmp the hosts see your own files, and what they write there stays."
    if request.limits.interrupt_after is not None:
        yield "The spot interruption comes without SageMaker's SIGTERM and 120 s (which never reach the program)."


def _of_v2(request: RehearsalRequest) -> Iterator[str]:
    types = sorted({group.instance_type for group in request.groups})
    cpu = [name for name in types if not name.startswith(_ACCELERATED)]
    if request.distribution is Distribution.TORCH_DISTRIBUTED:
        if cpu:
            yield f"SDK v2 refuses torch_distributed on {', '.join(cpu)}: only GPU and Trainium instances."
        if len(request.groups) > 1:
            yield "SDK v2 takes groups only with mpi and smdistributed; each group is a torchrun world of its own."
    if request.distribution in (Distribution.SMDISTRIBUTED, Distribution.PYTORCHDDP):
        yield f"SDK v2 refuses {request.distribution} for framework_version above 2.2.0, unless image_uri is given."
    if len(request.groups) > 1 and request.groups[0].name != HOMOGENEOUS_CLUSTER and request.local_mode_files:
        yield "Local mode has no instance groups."


def _of_v3(request: RehearsalRequest) -> Iterator[str]:
    for name, value in request.hyperparameters:
        if "." in name:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: shell variables have no dots."
        if "'" in value:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: its value has a single quote."
    for channel in request.channels:
        if "-" in channel.name or "." in channel.name:
            yield f"SDK v3's driver ends the job at the channel {channel.name!r}: its name is not a shell variable's."
    if request.distribution is Distribution.MPI and len(request.hosts) > 1:
        yield "SDK v3's MPI driver starts all its ranks on the first host (-np counts one host's processes)."
    if request.code is not None and (request.code / "requirements.txt").exists():
        yield "SDK v3 installs requirements.txt only when SourceCode(requirements=...) names it; it was not installed."


def _of_launcher(request: RehearsalRequest) -> Iterator[str]:
    has_count = request.hyperparameter(PROCESSES_PER_HOST) is not None
    if request.sdk is Sdk.V2 and request.distribution is not Distribution.MPI and has_count:
        yield f"Processes per host come from {PROCESSES_PER_HOST}; SageMaker counts the instance's GPUs, 1 on CPU."
    if request.distribution in (Distribution.SMDISTRIBUTED, Distribution.PYTORCHDDP):
        path = container_path(request, os.environ)
        if not any(os.access(os.path.join(folder, "smddprun"), os.X_OK) for folder in path.split(os.pathsep)):
            yield "There is no smddprun here, so ranks have only OMPI_* variables; images with SMDDP set RANK as well."
    if request.distribution.uses_mpirun:
        yield "Images for GPU on Amazon Linux 2023 have no mpi4py: add it to requirements.txt."


def _of_channels(request: RehearsalRequest) -> Iterator[str]:
    for channel in request.channels:
        settings = dict(channel.settings)
        if settings["TrainingInputMode"] == "FastFile":
            yield f"Channel {channel.name} is a plain folder here; FastFile's is read-only, and read on demand."
        if settings["S3DistributionType"] == "ShardedByS3Key":
            yield f"Every host has all of channel {channel.name} here; ShardedByS3Key gives each a share."
