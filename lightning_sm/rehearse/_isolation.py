"""Which ways of separating hosts this machine allows, and which of them a request can use."""

import os
import shutil
import subprocess
import sys
from typing import List, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._plan import tools_path
from lightning_sm.rehearse._request import Distribution, Isolation, NetworkLink, RehearsalRequest

__all__ = ["choose_isolation", "describe_isolation", "namespace_options", "probe_isolation", "probe_qdisc"]

_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork")

_TITLES = {
    Isolation.NETNS: "netns (root: each host has its own network, host name, /opt/ml, /etc, /tmp, processes)",
    Isolation.USERNS: "userns (rootless namespaces: each host has its own network, host name, /opt/ml, /etc, /tmp)",
    Isolation.LOOPBACK: "loopback (no rights needed: hosts are 127.0.0.K and share this machine's files and processes)",
}

# What the supervisor must be allowed to do, tried in namespaces that end with the shell.
_TRIAL = (
    "ip link add stage type bridge && ip link add eth0 type veth peer name peer && ip link set peer master stage && "
    "mount -t tmpfs tmpfs {folder} && mkdir {folder}/up {folder}/work {folder}/image && "
    "mount -t overlay overlay -o lowerdir={lower},upperdir={folder}/up,workdir={folder}/work {folder}/image && "
    "mount -t proc proc /proc"
)


def namespace_options(isolation: Isolation) -> Tuple[str, ...]:
    """Return the options of ``unshare`` for the supervisor of the hosts; none for ``loopback``."""
    if not isolation.is_namespaced:
        return ()
    user = ("--user", "--map-root-user") if isolation is Isolation.USERNS else ()
    return (*user, *_NAMESPACES)


def describe_isolation(isolation: Isolation) -> str:
    """Return the words of a rehearsal's first line."""
    return _TITLES[isolation]


def probe_isolation(isolation: Isolation, folder: str = "/tmp") -> Optional[str]:
    """Try the isolation on this machine. Return why it cannot be used; ``None`` if it can. Leaves nothing behind."""
    if not isolation.is_namespaced:
        return None
    if not sys.platform.startswith("linux"):
        return f"namespaces need Linux, this is {sys.platform}"
    if isolation is Isolation.NETNS and os.geteuid() != 0:
        return "it needs root"
    for command, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(command, path=_path()) is None:
            return f"{command} is not installed (package {package})"
    # A user namespace may not mount an overlay over a directory with mounts in it, so it tries /etc only.
    script = _TRIAL.format(folder=folder, lower="/" if isolation is Isolation.NETNS else "/etc")
    return _try_script(isolation, script)


def probe_qdisc(isolation: Isolation, discipline: str) -> Optional[str]:
    """Try a queueing discipline of ``tc``, such as ``netem delay 1ms``. Return the error; ``None`` if there is none."""
    return _try_script(isolation, f"tc qdisc add dev lo root {discipline}")


def choose_isolation(request: RehearsalRequest) -> Isolation:
    """Return the isolation to use: the requested one, or the best that the request and this machine allow.

    Raises:
        RehearsalError: There is none; the message says of each why not. Or the network cannot be shaped as requested.
    """
    reasons: List[str] = []
    for isolation in Isolation if request.isolation is None else (request.isolation,):
        reason = _unsuitable(request, isolation) or probe_isolation(isolation)
        if reason is None:
            _check_link(request.link, isolation)
            return isolation
        reasons.append(f"{isolation}: {reason}")
    job = f"--distribution {request.distribution} with SDK {request.sdk}"
    hint = "Run it as root, or on a Linux that allows unprivileged user namespaces."
    if request.distribution.uses_mpirun:
        hint = "The mpirun launchers need --isolation netns, and that needs root (in Docker: --privileged)."
    raise RehearsalError(f"{job} cannot be rehearsed here. " + "; ".join(reasons) + ".", hint=hint)


def _unsuitable(request: RehearsalRequest, isolation: Isolation) -> Optional[str]:
    """Why this request cannot run with ``isolation`` on any machine; ``None`` if it can."""
    if isolation is Isolation.NETNS:
        return None
    if request.distribution.uses_mpirun and isolation is Isolation.USERNS:
        return f"{request.distribution} logs in to each host by ssh, and sshd needs real users"
    if isolation is Isolation.USERNS:
        return None
    if request.distribution.uses_mpirun:
        return f"{request.distribution} logs in to each host by ssh on port 22, which hosts of one network cannot share"
    reads_base_dir = any("SAGEMAKER_BASE_DIR" in word for word in request.command)
    if request.command[-1:] != ("train",) and not reads_base_dir:
        return "this entry point uses /opt/ml by its absolute name"
    if request.link.is_shaped or request.limits.names_after:
        return "hosts without a network of their own cannot have --bandwidth, --latency or --names-after"
    if request.distribution is Distribution.TORCH_DISTRIBUTED and len(request.groups) > 1:
        return "each group is a world of its own at port 7777, which hosts of one network cannot share"
    return None


def _check_link(link: NetworkLink, isolation: Isolation) -> None:
    if link.is_shaped and shutil.which("tc", path=_path()) is None:
        raise RehearsalError(
            "--latency and --bandwidth need tc, which is not installed.",
            hint="On Debian and Ubuntu: apt install iproute2",
        )
    wanted = (
        (link.latency, "--latency", "netem", "delay 1ms"),
        (link.bits_per_second, "--bandwidth", "tbf", "rate 1gbit burst 65536 latency 1ms"),
    )
    for value, option, discipline, arguments in wanted:
        error = None if value is None else probe_qdisc(isolation, f"{discipline} {arguments}")
        if error is not None:
            raise RehearsalError(
                f"{option} is not available: this kernel has no {discipline} ({error}).",
                hint=f"Load its module (modprobe sch_{discipline}; on Ubuntu in the package "
                f"linux-modules-extra-$(uname -r)), or leave {option} out.",
            )


def _try_script(isolation: Isolation, script: str) -> Optional[str]:
    """Why the script fails in new namespaces, or ``None`` if it does not."""
    command = ["unshare", *namespace_options(isolation), "--kill-child", "sh", "-c", script]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
            env={**os.environ, "PATH": _path(), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"unshare ended with {done.returncode}")


def _path() -> str:
    return tools_path(os.environ.get("PATH", os.defpath))
