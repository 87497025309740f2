"""A namespaced host from the inside: it sets up its network and root directory, then becomes the container's process 1.

The root directory is this machine's files below a writable overlay, which is thrown away.

Run as ``unshare --net --mount --uts --ipc python -m lightning_sm.rehearse._container setup FOLDER HOST``.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NoReturn, Sequence, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._network import Command, host_commands, hosts_file
from lightning_sm.rehearse._plan import SHARED, RehearsalFolder, RehearsalPlan
from lightning_sm.rehearse._request import Isolation

__all__ = [
    "create_ssh_key",
    "other_mounts",
    "prepare_rootfs",
    "prepare_ssh",
    "root_mounts",
    "rootless_mounts",
    "run_commands",
    "NOT_STARTED",
    "exec_command",
    "main",
    "set_up_host",
]

# Mounted anew or bound unchanged; an overlay over them has no meaning.
_SYSTEM = ("/proc", "/sys", "/dev", "/run")

# What a rootless host can write to, besides /etc and /opt. Each has its own overlay, since it may have none over /.
_ROOTLESS_WRITABLE = ("/tmp", "/var/tmp", "/mnt")

# The first value wins in sshd_config, so these go in front.
_SSHD = "PermitRootLogin yes\nPubkeyAuthentication yes\nStrictModes no\nUsePAM yes\nPrintMotd no\nUseDNS no\n"


def run_commands(commands: Sequence[Command], *, check: bool = True) -> None:
    """Run each command.

    Args:
        commands: The words of each.
        check: Whether a command that fails is an error.

    Raises:
        RehearsalError: A command failed; the message has its output.
    """
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if check and done.returncode != 0:
            output = done.stdout.decode("utf-8", "replace").strip()
            raise RehearsalError(f"`{' '.join(command)}` failed: {output}")


def other_mounts(mountinfo: str, folder: Path) -> Tuple[str, ...]:
    """Return the directories, besides ``/`` and those below ``folder``, on which a file system is mounted."""
    found: List[str] = []
    for line in mountinfo.splitlines():
        # The kernel writes blanks and backslashes as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), line.split()[4])
        below = tuple(f"{system}/" for system in _SYSTEM)
        if point == "/" or point in _SYSTEM or point.startswith(below) or point.startswith(str(folder)):
            continue
        if os.path.isdir(point) and point not in found:
            found.append(point)
    return tuple(found)


def root_mounts(rootfs: Path, layer: Path, mounts: Sequence[str]) -> Tuple[Tuple[Command, ...], Tuple[Command, ...]]:
    """Return the commands of a host with root: those that must work, and those that may fail.

    A file system that cannot be the lower layer of an overlay is left out.
    """
    required = [
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(layer)),
        *_overlay("/", str(rootfs), layer / "root"),
        ("mount", "--rbind", "/dev", f"{rootfs}/dev"),
        *_system_mounts(rootfs),
    ]
    optional: List[Command] = []
    for number, point in enumerate(mounts):
        optional += _overlay(point, f"{rootfs}{point}", layer / f"mount{number}")
    return tuple(required), tuple(optional)


def rootless_mounts(rootfs: Path, layer: Path) -> Tuple[Tuple[Command, ...], Tuple[Command, ...]]:
    """Return the commands of a host in a user namespace: all files bound, with an overlay where a program writes."""
    required = [
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(layer)),
        ("mount", "--rbind", "/", str(rootfs)),
        *_overlay("/etc", f"{rootfs}/etc", layer / "etc"),
        *_overlay("/opt", f"{rootfs}/opt", layer / "opt"),
        *_system_mounts(rootfs),
    ]
    optional: List[Command] = []
    for point in _ROOTLESS_WRITABLE:
        optional += _overlay(point, f"{rootfs}{point}", layer / point.strip("/").replace("/", "-"))
    return tuple(required), tuple(optional)


def _overlay(lower: str, target: str, layer: Path) -> Tuple[Command, ...]:
    up, work = f"{layer}/up", f"{layer}/work"
    options = f"lowerdir={lower},upperdir={up},workdir={work}"
    # An overlay's top has the owner and mode of the upper folder: ours, with the mode of the lower one.
    return (
        ("mkdir", "-p", up, work),
        ("chmod", f"--reference={lower}", up),
        ("mount", "-t", "overlay", "overlay", "-o", options, target),
    )


def _system_mounts(rootfs: Path) -> Tuple[Command, ...]:
    return (
        ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{rootfs}/dev/shm"),
        ("mount", "-t", "sysfs", "sysfs", f"{rootfs}/sys"),
    )


def prepare_rootfs(rootfs: Path, host: str, hosts_file: str) -> None:
    """Write the host's names into ``/etc``, and remove files of this machine that the toolkits take for their own."""
    # The toolkit appends the container's variables to /etc/environment; those of this machine must not be in it.
    for name, content in (("hosts", hosts_file), ("hostname", f"{host}\n"), ("environment", "")):
        path = rootfs / "etc" / name
        # In a user namespace a file of the machine's root can be replaced, but not written to.
        if path.exists() or path.is_symlink():
            path.unlink()
        path.write_text(content, encoding="utf-8")
    for flag in [*rootfs.glob("tmp/done.*"), *rootfs.glob("tmp/ready.*")]:
        with contextlib.suppress(OSError):
            flag.unlink()


def create_ssh_key(folder: Path) -> None:
    """Create an ssh key without a password, for one rehearsal.

    Raises:
        RehearsalError: ``ssh-keygen`` failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = str(folder / "id_ed25519")
    run_commands([("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rehearsal", "-f", key)])


def prepare_ssh(rootfs: Path, keys: Path) -> None:
    """Configure ssh as the Dockerfiles of the training images do: a key for root, and sshd ready to start on port 22.

    Raises:
        RehearsalError: ``ssh-keygen`` failed.
    """
    home = rootfs / "root" / ".ssh"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700, parents=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        shutil.copy2(keys / name, home / name)
    shutil.copy2(keys / "id_ed25519.pub", home / "authorized_keys")
    client = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    (home / "config").write_text(client, encoding="utf-8")
    (home / "config").chmod(0o600)
    config = rootfs / "etc" / "ssh" / "sshd_config"
    config.write_text(_SSHD + config.read_text(encoding="utf-8"), encoding="utf-8")
    pam = rootfs / "etc" / "pam.d" / "sshd"
    if pam.exists():
        # There is no login session whose id could be set; the images make it optional too.
        text = re.sub(r"session\s+required\s+pam_loginuid.so", "session optional pam_loginuid.so", pam.read_text())
        pam.write_text(text)
    (rootfs / "run" / "sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    run_commands([("ssh-keygen", "-A", "-f", str(rootfs))])


#: Exit code of a host that could not be set up.
NOT_STARTED = 125


def set_up_host(folder: RehearsalFolder, host: str) -> None:
    """Set up the host's network and root directory, then replace this process by one in a new process namespace."""
    plan: RehearsalPlan = folder.read("plan")
    run_commands(host_commands(host, plan.addresses[host], plan.request.link))
    socket.sethostname(host)
    rootfs, layer = folder.rootfs(host), folder.layer(host)
    if plan.isolation is Isolation.NETNS:
        mounts = other_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), folder.root)
        required, optional = root_mounts(rootfs, layer, mounts)
    else:
        required, optional = rootless_mounts(rootfs, layer)
    run_commands(required)
    run_commands(optional, check=False)
    _mount_job(plan, folder, host)
    if plan.request.limits.names_after:
        _write_names_later(plan.request.limits.names_after, rootfs, hosts_file(plan.addresses))
    init = [sys.executable, "-m", "lightning_sm.rehearse._container", "exec", str(folder.root), host]
    # A second unshare: a process namespace begins with a child, and the first one needed the supervisor's process 1.
    os.execvp("unshare", ["unshare", "--pid", "--fork", "--kill-child", *init])


def _mount_job(plan: RehearsalPlan, folder: RehearsalFolder, host: str) -> None:
    """Write names and ssh keys, and mount ``/opt/ml`` with its channels."""
    rootfs = folder.rootfs(host)
    known = plan.addresses
    if plan.request.limits.names_after:
        known = {host: known[host]}
    prepare_rootfs(rootfs, host, hosts_file(known))
    if plan.request.distribution.uses_mpirun:
        prepare_ssh(rootfs, folder.keys)
    opt_ml, shared = rootfs / "opt" / "ml", Path(f"{rootfs}{SHARED}")
    for path in (opt_ml, shared):
        path.mkdir(parents=True, exist_ok=True)
    run_commands(
        [
            ("mount", "--bind", str(folder.opt_ml(host)), str(opt_ml)),
            ("mount", "--bind", str(folder.shared), str(shared)),
        ]
    )
    for channel in plan.request.channels:
        layer = folder.layer(host) / f"channel-{channel.name}"
        _mount_channel(channel.path, opt_ml / "input" / "data" / channel.name, layer)
    # Hides the files of the other hosts.
    run_commands([("mount", "-t", "tmpfs", "tmpfs", f"{rootfs}{folder.root}")], check=False)


def _mount_channel(source: Path, target: Path, layer: Path) -> None:
    if source.is_file():
        target.mkdir()
        shutil.copy2(source, target / source.name)
        return
    target.mkdir(exist_ok=True)
    up, work = layer / "up", layer / "work"
    options = f"lowerdir={source},upperdir={up},workdir={work}"
    try:
        run_commands(
            [("mkdir", "-p", str(up), str(work)), ("mount", "-t", "overlay", "overlay", "-o", options, str(target))]
        )
    except RehearsalError:
        run_commands([("mount", "--bind", "-o", "ro", str(source), str(target))])


def _write_names_later(seconds: float, rootfs: Path, names: str) -> None:
    """Write ``/etc/hosts`` from a process of its own, which ends with the host's process group."""
    if os.fork() == 0:
        time.sleep(seconds)
        (rootfs / "etc" / "hosts").write_text(names, encoding="utf-8")
        os._exit(0)


def exec_command(folder: RehearsalFolder, host: str) -> NoReturn:
    """Replace process 1 by the container's command, which is process 1 of a real container too."""
    plan: RehearsalPlan = folder.read("plan")
    rootfs = folder.rootfs(host)
    variables = plan.variables(folder, host)
    run_commands([("mount", "-t", "proc", "proc", f"{rootfs}/proc")])
    os.chroot(rootfs)
    os.chdir("/")
    command = plan.request.command
    program = shutil.which(command[0], path=variables["PATH"]) or command[0]
    os.execve(program, command, variables)


def main(argv: Sequence[str]) -> int:
    """Run ``setup`` or ``exec`` for a rehearsal's folder and a host."""
    step, folder, host = argv[0], RehearsalFolder(Path(argv[1])), argv[2]
    try:
        if step == "setup":
            set_up_host(folder, host)
        exec_command(folder, host)
    except (RehearsalError, OSError) as error:
        folder.start_error(host).write_text(str(error), encoding="utf-8")
        print(f"rehearsal: host {host} was not started: {error}", file=sys.stderr, flush=True)
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
