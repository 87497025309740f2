"""What the supervisor and the hosts of a rehearsal are given: a plan, and a temporary folder with a tree for each host.

The folder holds each host's files below ``/opt/ml``; the plan, how hosts are separated and the containers' variables.
"""

import dataclasses
import json
import os
import pickle
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm.rehearse._network import INTERFACE, addresses
from lightning_sm.rehearse._request import InputChannel, Isolation, RehearsalRequest, Sdk

__all__ = [
    "RehearsalFolder",
    "checkpoint_path",
    "config_files",
    "write_opt_ml",
    "SHARED",
    "RehearsalPlan",
    "container_environment",
    "container_path",
    "create_plan",
    "scripts_path",
    "tools_path",
]


@dataclass(frozen=True)
class RehearsalFolder:
    """The paths of one rehearsal's temporary folder, all of which is removed at the end."""

    root: Path

    def opt_ml(self, host: str) -> Path:
        """``/opt/ml`` of ``host``."""
        return self.hosts / host / "ml"

    def layer(self, host: str) -> Path:
        """The upper layer of ``host``'s root directory: what it writes anywhere else."""
        return self.hosts / host / "layer"

    def rootfs(self, host: str) -> Path:
        """The root directory of ``host``."""
        return self.hosts / host / "image"

    def start_error(self, host: str) -> Path:
        """The file that says why ``host`` was not started, if it was not."""
        return self.hosts / host / "refusal"

    @property
    def hosts(self) -> Path:
        """Everything that belongs to single hosts."""
        return self.root / "hosts"

    @property
    def shared(self) -> Path:
        """In place of S3, for what the containers download: the source archive."""
        return self.root / "shared"

    @property
    def archive(self) -> Path:
        """The source archive that the toolkit unpacks."""
        return self.shared / "sourcedir.tar.gz"

    @property
    def python(self) -> Path:
        """The containers' virtual environment, beside ``root`` because hosts do not see what is below it."""
        return self.root.with_name(f"{self.root.name}-python")

    @property
    def drivers(self) -> Path:
        """The channel with SDK v3's driver scripts."""
        return self.root / "drivers"

    @property
    def fetched(self) -> Path:
        """What was downloaded from S3."""
        return self.root / "fetched"

    @property
    def keys(self) -> Path:
        """The ssh key with which the hosts reach each other."""
        return self.root / "keys"

    @property
    def collected(self) -> Path:
        """In place of S3, for what the service uploads: archives and checkpoints."""
        return self.root / "collected"

    @property
    def checkpoints(self) -> Path:
        """In place of the checkpoints' S3 prefix, where the request names no local folder."""
        return self.collected / "checkpoints"

    def write(self, name: str, value: Any) -> None:
        """Save a value for another process of this rehearsal. The folder is readable by its owner only."""
        (self.root / f"{name}.pickle").write_bytes(pickle.dumps(value))

    def read(self, name: str) -> Any:
        """Return the value that the other process saved, or ``None``."""
        path = self.root / f"{name}.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def remove(self) -> None:
        """Remove everything. Safe to call from several processes, in any order."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.python, ignore_errors=True)


def config_files(request: RehearsalRequest, host: str, *, interface: str, base: str) -> Dict[str, Dict[str, object]]:
    """Return the content of each file in ``input/config`` of ``host``, whose ``/opt/ml`` is ``base``."""
    files: Dict[str, Dict[str, object]] = {
        "hyperparameters.json": dict(request.hyperparameters),
        "inputdataconfig.json": {channel.name: dict(channel.settings) for channel in request.channels},
        "resourceconfig.json": request.resource_config(host, interface),
    }
    if request.has_checkpoints:
        files["checkpointconfig.json"] = {
            "LocalPath": checkpoint_path(request, base),
            "S3Uri": f"s3://rehearsal/{request.job_name}/checkpoints",
        }
    return files


def checkpoint_path(request: RehearsalRequest, base: str) -> str:
    """Return ``CheckpointConfig.LocalPath`` where ``/opt/ml`` is ``base``."""
    prefix = "/opt/ml/"
    path = request.checkpoint_path
    return f"{base}/{path[len(prefix) :]}" if path.startswith(prefix) else path


def write_opt_ml(request: RehearsalRequest, host: str, opt_ml: Path, *, interface: str, base: str) -> None:
    """Create the folders and files that a container finds below ``/opt/ml`` when it starts."""
    # The output folder matters: without it the toolkit cannot write its failure file and ends with 0.
    for folder in ("input/config", "input/data", "model", "output/data", "code"):
        (opt_ml / folder).mkdir(parents=True, exist_ok=True)
    for name, content in config_files(request, host, interface=interface, base=base).items():
        (opt_ml / "input" / "config" / name).write_text(json.dumps(content), encoding="utf-8")


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
