"""Refused before anything starts: what can only fail, slowly or without saying why."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Mapping, Optional

from ._distributions import MPIRUN
from ._drivers_v3 import drivers_folder
from ._errors import RehearsalError
from ._request import RehearsalRequest

__all__ = ["check_entry_point", "check_port", "check_software", "container_path", "scripts_path"]

_MASTER_PORT = 7777


def scripts_path(path: str) -> str:
    """``path`` with this interpreter's own commands (``train``, ``torchrun``, ``python``) in front."""
    own = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    # sbin: the toolkits start sshd by its full path, but ip and tc are looked up.
    return os.pathsep.join(dict.fromkeys([*own, *path.split(os.pathsep), "/usr/sbin", "/sbin"]))


def container_path(request: RehearsalRequest, variables: Mapping[str, str], python: Optional[Path] = None) -> str:
    """``PATH`` of the containers. What the request puts there comes first: a wrapper stands before what it wraps."""
    own = dict(request.environment).get("PATH")
    commands = None if python is None else str(python / "bin")
    return os.pathsep.join(filter(None, [own, commands, scripts_path(variables.get("PATH", os.defpath))]))


def check_software(request: RehearsalRequest) -> None:
    """Whether everything that this launcher runs is installed.

    Raises:
        RehearsalError: Something is missing; the message names it and the extra or package that brings it.
    """
    path = scripts_path(os.environ.get("PATH", os.defpath))
    if request.sdk == "v2":
        for module in ("sagemaker_training", "sagemaker_pytorch_container"):
            if importlib.util.find_spec(module) is None:
                raise _missing(f"SageMaker's training toolkit (module {module})")
    elif request.code is not None:
        drivers_folder()
    if request.distribution == "torch_distributed" and shutil.which("torchrun", path=path) is None:
        raise RehearsalError("torchrun is not installed.", hint="It comes with torch: pip install torch")
    if request.distribution not in MPIRUN:
        return
    if importlib.util.find_spec("mpi4py") is None:
        raise _missing("mpi4py, through which the mpirun launchers start the program,")
    if importlib.util.find_spec("paramiko") is None:
        raise _missing("paramiko, with which the hosts look for each other,")
    for command, package in (("mpirun", "openmpi-bin"), ("sshd", "openssh-server"), ("ssh-keygen", "openssh-client")):
        if shutil.which(command, path=path) is None:
            raise RehearsalError(f"{command} is not installed.", hint=f"On Debian and Ubuntu: apt install {package}")


def check_entry_point(request: RehearsalRequest) -> None:
    """Whether the launcher can start this kind of entry point.

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
    if request.sdk == "v3" and not name.endswith((".py", ".sh")):
        raise RehearsalError(f"SDK v3 refuses the entry point {name!r}: it must end in .py or .sh.")
    if request.distribution != "torch_distributed":
        return
    if not name.endswith(".py"):
        raise RehearsalError(
            f"torchrun cannot start {name!r}: torch_distributed takes only a Python file.",
            hint="Give a .py entry point, or use --distribution none for a shell script.",
        )
    if request.sdk == "v2" and request.code is not None and (request.code / "setup.py").exists():
        raise RehearsalError(
            f"{request.code / 'setup.py'} makes the source directory a package, which torch_distributed refuses.",
            hint="Move setup.py out of the source directory, or use pyproject.toml.",
        )


def check_port(host: str = "127.0.0.1", port: int = _MASTER_PORT) -> None:
    """Whether the port that the toolkit's launchers meet at is free. Only loopback shares ports with the machine.

    Raises:
        RehearsalError: Something listens there already.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RehearsalError(
                f"Port {port} is in use ({error.strerror}), and the toolkit's hosts always meet there.",
                hint="End the other program (another rehearsal?), or use --isolation userns or netns.",
            ) from error


def _missing(what: str, hint: Optional[str] = None) -> RehearsalError:
    return RehearsalError(
        f"{what} is not installed for {sys.executable}.",
        hint=hint or "pip install 'lightning-sm[rehearse]' (needs gcc)",
    )
