"""How hosts are kept apart on one machine, and which ways this machine allows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ._distributions import MPIRUN
from ._errors import RehearsalError
from ._request import Link, RehearsalRequest
from ._tap import TUN

__all__ = ["ISOLATIONS", "Isolation", "choose", "probe"]

#: From the most to the least like SageMaker.
ISOLATIONS = ("netns", "userns", "loopback")

_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork")

# What a stage needs to be allowed to do, tried in namespaces that vanish with the shell.
_TRIAL = (
    "ip link add stage type bridge && ip link add eth0 type veth peer name peer && ip link set peer master stage && "
    "mount -t tmpfs tmpfs {folder} && mkdir {folder}/up {folder}/work {folder}/image && "
    "mount -t overlay overlay -o lowerdir={lower},upperdir={folder}/up,workdir={folder}/work {folder}/image && "
    "mount -t proc proc /proc"
)


@dataclass(frozen=True)
class Isolation:
    """One way to keep hosts apart. ``refusal`` says why this machine does not allow it; ``None`` when it does."""

    name: str
    refusal: Optional[str] = None

    @property
    def namespaces(self) -> Tuple[str, ...]:
        """The options of ``unshare`` for the stage on which the hosts stand."""
        if self.name == "loopback":
            return ()
        user = ("--user", "--map-root-user") if self.name == "userns" else ()
        return (*user, *_NAMESPACES)

    @property
    def title(self) -> str:
        """The words of the first line."""
        return {
            "netns": "netns (root: each host has its own network, host name, /opt/ml, /etc, /tmp, processes)",
            "userns": "userns (rootless namespaces: each host has its own network, host name, /opt/ml, /etc, /tmp)",
            "loopback": "loopback (no rights needed: hosts are 127.0.0.K and share this machine's files and processes)",
        }[self.name]


def probe(name: str, folder: str = "/tmp") -> Isolation:
    """Try on this machine whether ``name`` can be had. Leaves nothing behind."""
    if name == "loopback":
        return Isolation(name)
    if not sys.platform.startswith("linux"):
        return Isolation(name, f"namespaces need Linux, this is {sys.platform}")
    if name == "netns" and os.geteuid() != 0:
        return Isolation(name, "it needs root")
    for command, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(command, path=_tool_path()) is None:
            return Isolation(name, f"{command} is not installed (package {package})")
    # A user namespace may not lay over a directory in which something is mounted, so it tries /etc only.
    script = _TRIAL.format(folder=folder, lower="/" if name == "netns" else "/etc")
    return Isolation(name, _try(Isolation(name).namespaces, script))


def choose(request: RehearsalRequest, wanted: str) -> Isolation:
    """The isolation to use: the one that is wanted, or the best that the request needs and the machine allows.

    Raises:
        RehearsalError: None fits; the message says for each why not.
    """
    reasons: List[str] = []
    for name in ISOLATIONS if wanted == "auto" else (wanted,):
        unfit = _unfit(request, name)
        isolation = Isolation(name, unfit) if unfit else probe(name)
        if isolation.refusal is None:
            _check_link(request.link, isolation)
            return isolation
        reasons.append(f"{name}: {isolation.refusal}")
    what = f"--distribution {request.distribution} with SDK {request.sdk}"
    raise RehearsalError(f"{what} cannot be rehearsed here. " + "; ".join(reasons) + ".", hint=_hint(request))


def _hint(request: RehearsalRequest) -> str:
    if request.distribution in MPIRUN:
        return "The mpirun launchers need --isolation netns, and that needs root (in Docker: --privileged)."
    return "Run it as root, or on a Linux that allows unprivileged user namespaces."


def _unfit(request: RehearsalRequest, name: str) -> Optional[str]:
    """Why this request cannot be had with ``name`` on any machine."""
    if name == "netns":
        return None
    if request.distribution in MPIRUN and name == "userns":
        return f"{request.distribution} logs in to each host by ssh, and sshd needs real users"
    if name == "userns":
        return None
    if request.distribution in MPIRUN:
        return f"{request.distribution} logs in to each host by ssh on port 22, which hosts of one network cannot share"
    knows_base = any("SAGEMAKER_BASE_DIR" in word for word in request.command)
    if request.command[-1:] != ("train",) and not knows_base:
        return "this entry point uses /opt/ml by its absolute name"
    if request.link.shaped or request.limits.names_after:
        return "hosts without a network of their own cannot have --bandwidth, --latency or --names-after"
    if request.distribution == "torch_distributed" and len(request.groups) > 1:
        return "each group is a world of its own at port 7777, which hosts of one network cannot share"
    return None


def _check_link(link: Link, isolation: Isolation) -> None:
    if link.latency_ms is not None:
        refusal = _try(isolation.namespaces, "ip tuntap add dev trial mode tap")
        if refusal:
            raise RehearsalError(
                f"--latency needs TAP devices, and {TUN} makes none here ({refusal}).",
                hint="Load the module tun (modprobe tun), in Docker give --device /dev/net/tun, without root make the "
                "file readable and writable; or leave --latency out.",
            )
    if link.bits_per_second is None:
        return
    if shutil.which("tc", path=_tool_path()) is None:
        raise RehearsalError("--bandwidth needs tc.", hint="On Debian and Ubuntu: apt install iproute2")
    refusal = _try(isolation.namespaces, "tc qdisc add dev lo root tbf rate 1gbit burst 65536 latency 1ms")
    if refusal:
        raise RehearsalError(
            f"--bandwidth cannot be had: this kernel has no tbf ({refusal}).",
            hint="Load the module sch_tbf, or leave --bandwidth out.",
        )


def _try(namespaces: Tuple[str, ...], script: str) -> Optional[str]:
    """Why the script fails in fresh namespaces, or ``None`` when it does not."""
    command = ["unshare", *namespaces, "--kill-child", "sh", "-c", script]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
            env={**os.environ, "PATH": _tool_path(), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"unshare ended with {done.returncode}")


def _tool_path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
