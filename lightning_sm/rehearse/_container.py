"""A namespaced host from the inside: it sets up its network and root directory, then becomes the container's process 1.

Run as ``unshare --net --mount --uts --ipc python -m lightning_sm.rehearse._container setup FOLDER HOST``.
"""

import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn, Sequence

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._folder import RehearsalFolder
from lightning_sm.rehearse._network import host_commands, hosts_file
from lightning_sm.rehearse._plan import SHARED, RehearsalPlan
from lightning_sm.rehearse._request import Isolation
from lightning_sm.rehearse._rootfs import (
    other_mounts,
    prepare_rootfs,
    prepare_ssh,
    root_mounts,
    rootless_mounts,
    run_commands,
)

__all__ = ["NOT_STARTED", "exec_command", "main", "set_up_host"]

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
