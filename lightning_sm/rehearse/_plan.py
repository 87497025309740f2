"""What the supervisor and the hosts are told: the request, how hosts are separated, and the containers' variables."""

import dataclasses
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple

from lightning_sm.rehearse._folder import RehearsalFolder
from lightning_sm.rehearse._network import INTERFACE, addresses
from lightning_sm.rehearse._request import InputChannel, Isolation, RehearsalRequest, Sdk

__all__ = [
    "SHARED",
    "RehearsalPlan",
    "container_environment",
    "container_path",
    "create_plan",
    "scripts_path",
    "tools_path",
]

#: Where a namespaced host finds what a container would download from S3.
SHARED = "/opt/rehearsal"

_LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"

# Passed from the machine to the containers. The rest of the caller's shell is not: a stray RANK would change the job.
_PASSED_ON = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_PASSED_ON_PREFIXES = ("AWS_", "PIP_")

# As the Dockerfiles of the PyTorch training images set them.
_IMAGE = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "UTF-8",
    "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
}


@dataclass(frozen=True)
class RehearsalPlan:
    """A request with everything that is decided before the hosts start. It is handed to other processes as a file."""

    request: RehearsalRequest
    isolation: Isolation
    environment: Tuple[Tuple[str, str], ...]
    home: str
    log_to_stderr: bool = False

    @property
    def interface(self) -> str:
        """The network interface that the configuration files name."""
        return INTERFACE if self.isolation.is_namespaced else _LOOPBACK_INTERFACE

    @property
    def addresses(self) -> Dict[str, str]:
        """The address of each host."""
        hosts = self.request.hosts
        return addresses(hosts) if self.isolation.is_namespaced else {host: host for host in hosts}

    def base(self, folder: RehearsalFolder, host: str) -> str:
        """The path of ``/opt/ml`` as ``host`` sees it."""
        return "/opt/ml" if self.isolation.is_namespaced else str(folder.opt_ml(host))

    def variables(self, folder: RehearsalFolder, host: str) -> Dict[str, str]:
        """The whole environment of the container ``host``."""
        moved = {} if self.isolation.is_namespaced else {"SAGEMAKER_BASE_DIR": str(folder.opt_ml(host))}
        return {**moved, **dict(self.environment)}


def create_plan(
    request: RehearsalRequest,
    isolation: Isolation,
    variables: Mapping[str, str],
    folder: RehearsalFolder,
    *,
    log_to_stderr: bool = False,
) -> RehearsalPlan:
    """Return the plan: host names that the isolation allows, and an archive where its hosts can read it.

    Args:
        request: The job.
        isolation: How hosts are separated.
        variables: The environment of this process.
        folder: The rehearsal's folder, in which archive and virtual environment are already there.
        log_to_stderr: Whether the job's log goes to the standard error.
    """
    if not isolation.is_namespaced:
        # By number, so that the order of the names stays the same as far as possible.
        ordered = sorted(request.hosts, key=lambda host: int(host.rpartition("-")[2]))
        request = request.with_hosts({host: f"127.0.0.{number}" for number, host in enumerate(ordered, start=1)})
    if request.sdk is Sdk.V3 and request.code is not None:
        added = (InputChannel("code", str(request.code)), InputChannel("sm_drivers", str(folder.drivers)))
        request = dataclasses.replace(request, channels=(*request.channels, *added))
    if folder.archive.exists():
        archive = f"{SHARED}/{folder.archive.name}" if isolation.is_namespaced else str(folder.archive)
        request = request.with_hyperparameters({"sagemaker_submit_directory": f'"{archive}"'})
    home = "/root" if isolation is Isolation.NETNS else variables.get("HOME", "/")
    environment = container_environment(request, variables, home=home)
    environment["PATH"] = container_path(request, variables, folder.python if folder.python.exists() else None)
    if not isolation.is_namespaced and "TMPDIR" in variables and "TMPDIR" not in environment:
        environment["TMPDIR"] = variables["TMPDIR"]
    return RehearsalPlan(request, isolation, tuple(environment.items()), home, log_to_stderr)


def container_environment(request: RehearsalRequest, variables: Mapping[str, str], *, home: str) -> Dict[str, str]:
    """Return the variables of a container: the image's, the platform's, then the request's own, which win."""
    machine = {
        name: value for name, value in variables.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    platform = {
        "HOME": home,
        "TRAINING_JOB_NAME": request.job_name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{request.job_name}",
        "AWS_REGION": variables.get("AWS_REGION", "us-east-1"),
    }
    return {**machine, **_IMAGE, **platform, **dict(request.environment)}


def container_path(request: RehearsalRequest, variables: Mapping[str, str], python: Optional[Path] = None) -> str:
    """Return ``PATH`` of the containers. The request's own comes first: a wrapper must precede what it wraps."""
    own = dict(request.environment).get("PATH")
    commands = None if python is None else str(python / "bin")
    return os.pathsep.join(filter(None, [own, commands, scripts_path(variables.get("PATH", os.defpath))]))


def scripts_path(path: str) -> str:
    """Return ``path`` with this interpreter's own commands (``train``, ``torchrun``, ``python``) in front."""
    own = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    return os.pathsep.join(dict.fromkeys([*own, *tools_path(path).split(os.pathsep)]))


def tools_path(path: str) -> str:
    """Return ``path`` with the folders of ``ip``, ``tc`` and ``sshd`` at its end."""
    return os.pathsep.join([path, "/usr/sbin", "/sbin"])
