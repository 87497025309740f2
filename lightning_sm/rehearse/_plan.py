"""What the hosts of a rehearsal are given: a plan, and a temporary folder with a tree for each host.

The folder holds each host's files below ``/opt/ml``; the plan, how hosts are separated and the containers' variables.
"""

import json
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm.rehearse._network import INTERFACE
from lightning_sm.rehearse._request import Isolation, RehearsalRequest

__all__ = [
    "SHARED",
    "RehearsalFolder",
    "RehearsalPlan",
    "container_path",
    "create_plan",
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


class RehearsalFolder:
    """The paths of one rehearsal's temporary folder, all of which is removed at the end.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Everything that belongs to single hosts.
        self.hosts = root / "hosts"
        #: The source archive that the toolkit unpacks, in the folder for what the containers download.
        self.archive = root / "shared" / "sourcedir.tar.gz"
        #: The containers' virtual environment, beside ``root`` because hosts do not see what is below it.
        self.python = root.with_name(f"{root.name}-python")
        #: The ssh key with which the hosts reach each other.
        self.keys = root / "keys"
        #: In place of S3, for what the service uploads: archives and checkpoints.
        self.collected = root / "collected"
        #: In place of the checkpoints' S3 prefix, where the request names no local folder.
        self.checkpoints = self.collected / "checkpoints"

    def opt_ml(self, host: str) -> Path:
        """``/opt/ml`` of ``host``."""
        return self.hosts / host / "ml"

    def start_error(self, host: str) -> Path:
        """The file that says why ``host`` was not started, if it was not."""
        return self.hosts / host / "error"

    def remove(self) -> None:
        """Remove everything. Safe to call from several processes, in any order."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.python, ignore_errors=True)


@dataclass(frozen=True)
class RehearsalPlan:
    """A request with everything that is decided before the hosts start.

    Args:
        request: The job, with the names of its hosts.
        isolation: How hosts are separated.
        folder: The rehearsal's folder.
        environment: The containers' variables.
        enter: The command that enters the namespaces of the rehearsal.
    """

    request: RehearsalRequest
    isolation: Isolation
    folder: RehearsalFolder
    environment: Mapping[str, str]
    enter: Tuple[str, ...] = ()

    @property
    def addresses(self) -> Dict[str, str]:
        """The address of each host, in a network that exists only in the rehearsal's namespace."""
        return {host: f"10.0.{k // 200}.{k % 200 + 2}" for k, host in enumerate(self.request.hosts)}

    def variables(self, host: str) -> Dict[str, str]:
        """The whole environment of the container ``host``."""
        moved = {} if self.isolation != "loopback" else {"SAGEMAKER_BASE_DIR": str(self.folder.opt_ml(host))}
        return {**moved, **self.environment}

    def checkpoints_of(self, host: str) -> Path:
        """The folder with the checkpoints of ``host``, as this machine sees it."""
        return self.folder.opt_ml(host) / self.request.checkpoint_path[len("/opt/ml/") :]

    def config_files(self, host: str) -> Dict[str, Dict[str, Any]]:
        """The content of each file in ``input/config`` of ``host``."""
        request = self.request
        files: Dict[str, Dict[str, Any]] = {
            "hyperparameters.json": dict(request.hyperparameters),
            "inputdataconfig.json": {channel.name: dict(channel.settings) for channel in request.channels},
            "resourceconfig.json": self._resource_config(host),
        }
        if self.folder.archive.exists():
            archive = f"{SHARED}/{self.folder.archive.name}"
            if self.isolation == "loopback":
                archive = str(self.folder.archive)
            files["hyperparameters.json"]["sagemaker_submit_directory"] = json.dumps(archive)
        if request.has_checkpoints:
            path = request.checkpoint_path if self.isolation != "loopback" else str(self.checkpoints_of(host))
            bucket = f"s3://rehearsal/{request.job_name}/checkpoints"
            files["checkpointconfig.json"] = {"LocalPath": path, "S3Uri": bucket}
        return files

    def _resource_config(self, host: str) -> Dict[str, Any]:
        group = self.request.group_of(host)
        content: Dict[str, Any] = {
            "current_host": host,
            "current_instance_type": group.instance_type,
            "current_group_name": group.name,
            "hosts": list(self.request.hosts),
            "instance_groups": [
                {"instance_group_name": each.name, "instance_type": each.instance_type, "hosts": list(each.hosts)}
                for each in self.request.groups
            ],
            "network_interface_name": INTERFACE if self.isolation != "loopback" else _LOOPBACK_INTERFACE,
        }
        if self.request.options.local_mode_files:
            # SDK v2's local mode writes neither groups nor a group name.
            del content["instance_groups"], content["current_group_name"]
            content["current_instance_type"] = "local"
        return content


def create_plan(
    request: RehearsalRequest,
    isolation: Isolation,
    variables: Mapping[str, str],
    folder: RehearsalFolder,
    enter: Tuple[str, ...] = (),
) -> RehearsalPlan:
    """Return the plan.

    The containers get the image's variables, the platform's, then the request's own, which win.

    Args:
        request: The job.
        isolation: How hosts are separated.
        variables: The environment of this process.
        folder: The rehearsal's folder, in which archive and virtual environment are already there.
        enter: The command that enters the namespaces of the rehearsal.
    """
    if isolation == "loopback":
        # In the order of the groups' hosts, as far as addresses allow it.
        names = [host for group in request.groups for host in group.hosts]
        ordered = sorted(names, key=lambda host: (len(host), host))
        request = request.with_options(host_names=tuple(f"127.0.0.{ordered.index(name) + 1}" for name in names))
    passed = {
        name: value for name, value in variables.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    if isolation == "loopback" and "TMPDIR" in variables:
        passed["TMPDIR"] = variables["TMPDIR"]
    platform = {
        "HOME": "/root" if isolation == "netns" else variables.get("HOME", "/"),
        "TRAINING_JOB_NAME": request.job_name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{request.job_name}",
        "AWS_REGION": variables.get("AWS_REGION", "us-east-1"),
    }
    path = {"PATH": container_path(request, variables, folder.python)}
    environment = {**passed, **_IMAGE, **platform, **request.environment, **path}
    return RehearsalPlan(request, isolation, folder, environment, enter)


def container_path(request: RehearsalRequest, variables: Mapping[str, str], python: Optional[Path] = None) -> str:
    """Return ``PATH`` of the containers.

    The request's own comes first, since a wrapper must precede what it wraps; then the virtual environment, and this
    interpreter's commands (``train``, ``torchrun``, ``python``).
    """
    own = request.environment.get("PATH")
    commands = None if python is None else str(python / "bin")
    here = (os.path.dirname(sys.executable), sysconfig.get_path("scripts"))
    known = tools_path(variables).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [own, commands, *here, *known])))


def tools_path(variables: Mapping[str, str] = os.environ) -> str:
    """Return ``PATH`` of these variables with the folders of ``ip``, ``tc`` and ``sshd`` at its end."""
    return os.pathsep.join([variables.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
