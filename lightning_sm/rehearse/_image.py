"""The root directory of a namespaced host: this machine's files underneath, what is written on top is thrown away."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, Sequence, Tuple

from ._shaping import Command

__all__ = ["other_mounts", "root_commands", "rootless_commands"]

# Made afresh or bound as they are; laying over them has no meaning.
_SYSTEM = ("/proc", "/sys", "/dev", "/run")

# What a rootless host can write to, besides /etc and /opt: laid over one by one, since it may not lay over /.
_ROOTLESS_PRIVATE = ("/tmp", "/var/tmp", "/mnt")


def other_mounts(mountinfo: str, tree: Path) -> Tuple[str, ...]:
    """The directories, besides ``/``, on which a file system of this machine is mounted."""
    found: List[str] = []
    for line in mountinfo.splitlines():
        # The kernel writes blanks and backslashes as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), line.split()[4])
        below = [f"{system}/" for system in _SYSTEM]
        if point == "/" or point in _SYSTEM or point.startswith(tuple(below)) or point.startswith(str(tree)):
            continue
        if os.path.isdir(point) and point not in found:
            found.append(point)
    return tuple(found)


def root_commands(image: Path, layer: Path, mounts: Sequence[str]) -> Tuple[Tuple[Command, ...], Tuple[Command, ...]]:
    """As root: the commands that must work, then those that may fail (a mount that cannot be laid over stays out)."""
    must = [
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(layer)),
        *_overlay("/", str(image), layer / "root"),
        *_system(image),
    ]
    may: List[Command] = []
    for number, point in enumerate(mounts):
        may += _overlay(point, f"{image}{point}", layer / f"mount{number}")
    return tuple(must), tuple(may)


def rootless_commands(image: Path, layer: Path) -> Tuple[Tuple[Command, ...], Tuple[Command, ...]]:
    """In a user namespace: everything bound as it is, with a private layer over what a program writes to."""
    must = [
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(layer)),
        ("mount", "--rbind", "/", str(image)),
        *_overlay("/etc", f"{image}/etc", layer / "etc"),
        *_overlay("/opt", f"{image}/opt", layer / "opt"),
        *_system(image, devices=False),
    ]
    may: List[Command] = []
    for point in _ROOTLESS_PRIVATE:
        may += _overlay(point, f"{image}{point}", layer / point.strip("/").replace("/", "-"))
    return tuple(must), tuple(may)


def _overlay(lower: str, target: str, layer: Path) -> Tuple[Command, ...]:
    up, work = f"{layer}/up", f"{layer}/work"
    options = f"lowerdir={lower},upperdir={up},workdir={work}"
    # What is laid over shows at its top the owner and mode of the upper folder: ours, with the mode of the lower one.
    return (
        ("mkdir", "-p", up, work),
        ("chmod", f"--reference={lower}", up),
        ("mount", "-t", "overlay", "overlay", "-o", options, target),
    )


def _system(image: Path, devices: bool = True) -> Tuple[Command, ...]:
    bound: Tuple[Command, ...] = (("mount", "--rbind", "/dev", f"{image}/dev"),) if devices else ()
    return (
        *bound,
        ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{image}/dev/shm"),
        ("mount", "-t", "sysfs", "sysfs", f"{image}/sys"),
    )
