"""A namespaced host: the files that are written for it, and the script that sets it up and becomes its process 1.

The root directory is this machine's files below a writable overlay, which is thrown away.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import List, Sequence, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._network import Command, host_commands
from lightning_sm.rehearse._plan import SHARED, RehearsalPlan, tools_path

__all__ = ["create_ssh_key", "other_mounts", "prepare_container", "run_commands"]

# Mounted anew or bound unchanged; an overlay over them has no meaning.
_SYSTEM = ("/proc", "/sys", "/dev", "/run")

# What a rootless host can write to. Each has its own overlay, since it may have none over /.
_ROOTLESS = ("/etc", "/opt")
_ROOTLESS_OPTIONAL = ("/tmp", "/var/tmp", "/mnt")

# The first value wins in sshd_config, so these go in front.
_SSHD = "PermitRootLogin yes\nPubkeyAuthentication yes\nStrictModes no\nUsePAM yes\nPrintMotd no\nUseDNS no\n"
_SSH = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"

_FUNCTIONS = """run() { text=$("$@" 2>&1) || { echo "\\`$*\\` failed: $text" > %s; exit 1; }; }
try() { "$@" > /dev/null 2>&1 || :; }
"""


def run_commands(commands: Sequence[Command], *, enter: Command = ()) -> None:
    """Run each command.

    Args:
        commands: The arguments of each.
        enter: The command through which each is run, such as one that enters namespaces.

    Raises:
        RehearsalError: A command failed; the message has its output.
    """
    environ = {**os.environ, "PATH": tools_path()}
    for command in commands:
        done = subprocess.run(
            [*enter, *command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            output = done.stdout.decode("utf-8", "replace").strip()
            raise RehearsalError(f"`{' '.join(command)}` failed: {output}")


def create_ssh_key(folder: Path) -> None:
    """Create an ssh key without a password, with which the hosts of one rehearsal reach each other.

    Raises:
        RehearsalError: ``ssh-keygen`` failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = str(folder / "id_ed25519")
    run_commands([("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rehearsal", "-f", key)])


def prepare_container(plan: RehearsalPlan, host: str) -> Tuple[str, ...]:
    """Write the files of a namespaced host; return the command that starts it, in the namespaces of the rehearsal.

    Where the host cannot be set up, its ``start_error`` says why.
    """
    place = plan.folder.hosts / host
    # The root directory of the host, and the upper layer of its overlays.
    rootfs, layer = place / "image", place / "layer"
    for folder in (rootfs, layer):
        folder.mkdir(parents=True)
    _write_files(plan, place / "files", host)
    required, optional = _mounts(plan, rootfs, layer)
    # The command is process 1, as that of a real container is. Until then the holder is: a host's port is moved to the
    # network of its process 1.
    enter = ("unshare", "--pid", "--fork", "--kill-child", f"--root={rootfs}", "--mount-proc", "--")
    lines = [
        _FUNCTIONS % shlex.quote(str(plan.folder.start_error(host))),
        *(f"run {shlex.join(command)}" for command in required),
        *(f"try {shlex.join(command)}" for command in optional),
        *(f"run {shlex.join(command)}" for command in _settings(plan, host, rootfs, layer)),
        # Hides the files of the other hosts.
        f"try {shlex.join(('mount', '-t', 'tmpfs', 'tmpfs', f'{rootfs}{plan.folder.root}'))}",
        f"exec {shlex.join((*enter, *plan.request.command))}",
    ]
    script = place / "start.sh"
    script.write_text("\n".join(lines), encoding="utf-8")
    return (*plan.enter, "unshare", "--net", "--mount", "--uts", "--ipc", "sh", str(script))


def _write_files(plan: RehearsalPlan, folder: Path, host: str) -> None:
    """Write what replaces files of this machine: the host's names, and ssh as in the training images' Dockerfiles."""
    names = "".join(f"{address} {name}\n" for name, address in plan.addresses.items())
    files = {
        "etc/hosts": f"127.0.0.1 localhost\n{names}",
        "etc/hostname": f"{host}\n",
        # The toolkit appends the container's variables to it; those of this machine must not be in it.
        "etc/environment": "",
    }
    if plan.request.uses_mpirun:
        public = (plan.folder.keys / "id_ed25519.pub").read_text(encoding="utf-8")
        private = (plan.folder.keys / "id_ed25519").read_text(encoding="utf-8")
        # There is no login session whose id could be set; the images make it optional too.
        required, optional = r"session\s+required\s+pam_loginuid.so", "session optional pam_loginuid.so"
        pam = Path("/etc/pam.d/sshd")
        files.update(
            {
                "root/.ssh/id_ed25519": private,
                "root/.ssh/authorized_keys": public,
                "root/.ssh/config": _SSH,
                "etc/ssh/sshd_config": _SSHD + Path("/etc/ssh/sshd_config").read_text(encoding="utf-8"),
                "etc/pam.d/sshd": re.sub(required, optional, pam.read_text(encoding="utf-8") if pam.exists() else ""),
            }
        )
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        if ".ssh" in name:
            path.chmod(0o600)


def _mounts(plan: RehearsalPlan, rootfs: Path, layer: Path) -> Tuple[List[Command], List[Command]]:
    """The commands that mount the root directory: those that must work, and those that may fail.

    A file system that cannot be the lower layer of an overlay is left out.
    """
    required: List[Command] = [("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(layer))]
    if plan.isolation == "netns":
        mounts = other_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), plan.folder.root)
        required += [*_overlay("/", str(rootfs), layer / "root"), ("mount", "--rbind", "/dev", f"{rootfs}/dev")]
    else:
        mounts = _ROOTLESS_OPTIONAL
        required.append(("mount", "--rbind", "/", str(rootfs)))
        for point in _ROOTLESS:
            required += _overlay(point, f"{rootfs}{point}", layer / point[1:])
    optional = [
        command
        for number, point in enumerate(mounts)
        for command in _overlay(point, f"{rootfs}{point}", layer / f"mount{number}")
    ]
    return required, optional


def _settings(plan: RehearsalPlan, host: str, rootfs: Path, layer: Path) -> List[Command]:
    """The commands for what a host has beside its root directory: network, names, ``/opt/ml`` with its channels."""
    folder, options = plan.folder, plan.request.options
    files = folder.hosts / host / "files"
    name = f"import socket; socket.sethostname({host!r})"
    commands: List[Command] = [
        *host_commands(host, plan.addresses[host], latency=options.latency, bandwidth=options.bandwidth),
        (sys.executable, "-I", "-S", "-c", name),
        ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{rootfs}/dev/shm"),
        ("mount", "-t", "sysfs", "sysfs", f"{rootfs}/sys"),
        # Flags of the toolkit on this machine, which it would take for its own. Another user's may not be removed.
        ("sh", "-c", 'rm -f "$0"/tmp/done.* "$0"/tmp/ready.* || :', str(rootfs)),
        # In a user namespace a file of the machine's root can be replaced, but not written to.
        ("cp", "-R", "--preserve=mode", "--remove-destination", f"{files}/etc", str(rootfs)),
        ("mkdir", "-p", f"{rootfs}/opt/ml", f"{rootfs}{SHARED}"),
        ("mount", "--bind", str(folder.opt_ml(host)), f"{rootfs}/opt/ml"),
        ("mount", "--bind", str(folder.archive.parent), f"{rootfs}{SHARED}"),
    ]
    if plan.request.uses_mpirun:
        # As root only, so below an overlay.
        commands += [
            ("rm", "-rf", f"{rootfs}/root/.ssh"),
            ("cp", "-R", "--preserve=mode", f"{files}/root/.ssh", f"{rootfs}/root/.ssh"),
            ("mkdir", "-p", "-m", "755", f"{rootfs}/run/sshd"),
            ("ssh-keygen", "-A", "-f", str(rootfs)),
        ]
    for channel in plan.request.channels:
        source, target = str(channel.path), f"{rootfs}/opt/ml/input/data/{channel.name}"
        commands.append(("mkdir", "-p", target))
        if channel.path.is_file():
            commands.append(("cp", source, target))
            continue
        overlay = " && ".join(shlex.join(each) for each in _overlay(source, target, layer / f"channel-{channel.name}"))
        # Not every file system can be below an overlay.
        commands.append(("sh", "-c", f"{overlay} || {shlex.join(('mount', '--bind', '-o', 'ro', source, target))}"))
    return commands


def _overlay(lower: str, target: str, layer: Path) -> Tuple[Command, ...]:
    up, work = f"{layer}/up", f"{layer}/work"
    options = f"lowerdir={lower},upperdir={up},workdir={work}"
    # An overlay's top has the owner and mode of the upper folder: ours, with the mode of the lower one.
    return (
        ("mkdir", "-p", up, work),
        ("chmod", f"--reference={lower}", up),
        ("mount", "-t", "overlay", "overlay", "-o", options, target),
    )


def other_mounts(mountinfo: str, folder: Path) -> Tuple[str, ...]:
    """Return the directories, besides ``/`` and those below ``folder``, on which a file system is mounted."""
    written = [line.split()[4] for line in mountinfo.splitlines()]
    # The kernel writes blanks and backslashes as octal numbers.
    points = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), each) for each in written]
    below = (*(f"{system}/" for system in _SYSTEM), str(folder))
    others = [each for each in points if each not in ("/", *_SYSTEM) and not each.startswith(below)]
    return tuple(dict.fromkeys(filter(os.path.isdir, others)))
