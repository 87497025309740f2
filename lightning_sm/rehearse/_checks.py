"""What is refused before anything starts: missing software, an isolation that this machine has not."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Dict, List, Optional, Tuple

from lightning_sm._sagemaker.topology import DEFAULT_PORT
from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._plan import container_path, tools_path
from lightning_sm.rehearse._request import Isolation, RehearsalRequest

__all__ = [
    "TITLES",
    "check_folders",
    "check_software",
    "choose_isolation",
    "namespace_options",
    "probe_isolation",
]

_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork")

#: The isolations, the best one first, as the first line of a rehearsal has them.
TITLES: Dict[Isolation, str] = {
    "netns": "netns (root: each host has its own network, host name, /opt/ml, /etc, /tmp, processes)",
    "userns": "userns (rootless namespaces: each host has its own network, host name, /opt/ml, /etc, /tmp)",
    "loopback": "loopback (no rights needed: hosts are 127.0.0.K and share this machine's files and processes)",
}

# What the supervisor must be allowed to do, tried in namespaces that end with the shell.
_TRIAL = (
    "ip link add bridge0 type bridge && ip link add eth0 type veth peer name peer && ip link set peer master bridge0 "
    "&& mount -t tmpfs tmpfs /tmp && mkdir /tmp/up /tmp/work /tmp/image && "
    "mount -t overlay overlay -o lowerdir={lower},upperdir=/tmp/up,workdir=/tmp/work /tmp/image && "
    "mount -t proc proc /proc"
)


def check_folders(request: RehearsalRequest) -> None:
    """Make the folders that results are copied to when the job has ended.

    Raises:
        RehearsalError: One cannot be written.
    """
    options = request.options
    for flag, folder in (("--output-dir", options.output_dir), ("--checkpoint-dir", options.checkpoint_dir)):
        try:
            if folder is not None:
                os.makedirs(folder, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise RehearsalError(f"{flag} {folder} cannot be written: {error}.", hint="Name another folder.") from error


def check_software(request: RehearsalRequest) -> None:
    """Check that everything that this launcher runs is installed.

    Raises:
        RehearsalError: Something is missing; the message names it and the extra or package that contains it.
    """
    distribution = request.distribution
    modules = ["sagemaker_training", "sagemaker_pytorch_container"] if request.sdk == "v2" else []
    commands: Dict[str, str] = {}
    if request.options.launcher is not None:
        commands[request.options.launcher] = "pip install hyperpod-elastic-agent (it needs a torch below 2.12)"
    elif distribution == "torch_distributed":
        commands["torchrun"] = "It is a part of torch: pip install torch"
    if request.uses_mpirun:
        modules.append("mpi4py")
        packages = "On Debian and Ubuntu: apt install openmpi-bin openssh-server openssh-client"
        commands.update(dict.fromkeys(("mpirun", "sshd", "ssh-keygen"), packages))
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise RehearsalError(
                f"{module} is not installed for {sys.executable}.",
                hint="pip install 'lightning-sm[rehearse]' (needs gcc)",
            )
    for command, hint in commands.items():
        if shutil.which(command, path=container_path(request, os.environ)) is None:
            raise RehearsalError(f"{command} is not installed.", hint=hint)


def namespace_options(isolation: Isolation) -> Tuple[str, ...]:
    """Return the options of ``unshare`` for the supervisor of the hosts; none for ``loopback``."""
    if isolation == "loopback":
        return ()
    user = ("--user", "--map-root-user") if isolation == "userns" else ()
    return (*user, *_NAMESPACES)


def probe_isolation(isolation: Isolation) -> Optional[str]:
    """Try the isolation on this machine. Return why it cannot be used; ``None`` if it can. Leaves nothing behind."""
    if isolation == "loopback":
        return None
    # A user namespace may not mount an overlay over a directory with mounts in it, so it tries /etc only.
    trial = _TRIAL.format(lower="/" if isolation == "netns" else "/etc")
    command = ["unshare", *namespace_options(isolation), "--kill-child", "sh", "-c", trial]
    environ = {**os.environ, "PATH": tools_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"unshare ended with {done.returncode}")


def choose_isolation(request: RehearsalRequest) -> Isolation:
    """Return the isolation to use: the requested one, or the best that the request and this machine allow.

    Raises:
        RehearsalError: There is none; the message says of each why not.
    """
    reasons: List[str] = []
    asked = request.options.isolation
    for isolation in TITLES if asked is None else (asked,):
        reason = _unsuitable(request, isolation) or probe_isolation(isolation)
        if reason is None:
            return isolation
        reasons.append(f"{isolation}: {reason}")
    hint = "Run it as root, or on a Linux that allows unprivileged user namespaces."
    if request.uses_mpirun:
        hint = "The mpirun launchers need --isolation netns, and that needs root (in Docker: --privileged)."
    raise RehearsalError(
        f"--distribution {request.distribution} with SDK {request.sdk} cannot be rehearsed here. {'; '.join(reasons)}.",
        hint=hint,
    )


def _unsuitable(request: RehearsalRequest, isolation: Isolation) -> Optional[str]:
    """Why this request cannot run with ``isolation``, as far as that needs no trial; ``None`` if it can."""
    options, is_loopback = request.options, isolation == "loopback"
    is_torchrun = request.distribution == "torch_distributed"
    reads_base_dir = any("SAGEMAKER_BASE_DIR" in word for word in request.command)
    found = {
        f"{request.distribution} logs in to each host by ssh on port 22, and sshd needs real users": (
            request.uses_mpirun and isolation != "netns"
        ),
        f"{options.launcher} writes to /opt/ml and serves port 8080 on each host": (
            is_loopback and options.launcher is not None
        ),
        "this entry point uses /opt/ml by its absolute name": (
            is_loopback and request.command[-1:] != ("train",) and not reads_base_dir
        ),
        "hosts without a network of their own cannot have --bandwidth or --latency": (
            is_loopback and (options.bandwidth, options.latency) != (None, None)
        ),
        "each group is a world of its own at port 7777, which hosts of one network cannot share": (
            is_loopback and is_torchrun and len(request.groups) > 1
        ),
        f"port {DEFAULT_PORT}, at which the hosts would meet, is in use (another rehearsal?)": (
            is_loopback and is_torchrun and not _is_free(DEFAULT_PORT)
        ),
    }
    return next((text for text, applies in found.items() if applies), None)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
