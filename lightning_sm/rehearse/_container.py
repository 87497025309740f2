"""A namespaced host from inside: it connects itself, changes to its own root, and is process 1 of its container.

Run as ``unshare --net --mount --uts --ipc python -m lightning_sm.rehearse._container enter TREE HOST``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn, Sequence

from ._distributions import MPIRUN
from ._errors import RehearsalError
from ._furnish import furnish, furnish_ssh
from ._image import other_mounts, root_commands, rootless_commands
from ._netns import host_commands, hosts_file
from ._plan import SHARED, Plan
from ._shaping import Command
from ._tree import Tree

__all__ = ["NOT_STARTED", "enter", "play", "run_all"]

#: Exit status of a host that could not be set up; its last line says why.
NOT_STARTED = 125


def run_all(commands: Sequence[Command], *, must: bool = True) -> None:
    """Run each command.

    Raises:
        RehearsalError: One that must work did not.
    """
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if must and done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace").strip()
            raise RehearsalError(f"`{' '.join(command)}` failed: {said}")


def enter(tree: Tree, host: str) -> None:
    """Make the host's network and root, then become the process that starts its process namespace."""
    plan: Plan = tree.read("plan")
    run_all(host_commands(host, plan.addresses[host], plan.request.link, os.getpid()))
    socket.sethostname(host)
    image, layer = tree.image(host), tree.layer(host)
    if plan.isolation == "netns":
        mounts = other_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), tree.root)
        must, may = root_commands(image, layer, mounts)
    else:
        must, may = rootless_commands(image, layer)
    run_all(must)
    run_all(may, must=False)
    _furnish(plan, tree, host)
    if plan.request.limits.names_after:
        _name_later(plan.request.limits.names_after, image, hosts_file(plan.addresses))
    init = [sys.executable, "-m", "lightning_sm.rehearse._container", "play", str(tree.root), host]
    # A second unshare: process namespaces begin with a child, and the first one needed the stage's process 1.
    os.execvp("unshare", ["unshare", "--pid", "--fork", "--kill-child", *init])


def _furnish(plan: Plan, tree: Tree, host: str) -> None:
    image = tree.image(host)
    known = plan.addresses
    if plan.request.limits.names_after:
        known = {host: known[host]}
    furnish(image, host, hosts_file(known))
    if plan.request.distribution in MPIRUN:
        furnish_ssh(image, tree.keys)
    ml, shared = image / "opt" / "ml", Path(f"{image}{SHARED}")
    for folder in (ml, shared):
        folder.mkdir(parents=True, exist_ok=True)
    run_all([("mount", "--bind", str(tree.ml(host)), str(ml)), ("mount", "--bind", str(tree.shared), str(shared))])
    for channel in plan.request.channels:
        _mount_channel(channel.path, ml / "input" / "data" / channel.name, tree.layer(host) / f"channel-{channel.name}")
    # The files of the other hosts lie below it.
    run_all([("mount", "-t", "tmpfs", "tmpfs", f"{image}{tree.root}")], must=False)


def _mount_channel(source: Path, target: Path, layer: Path) -> None:
    if source.is_file():
        target.mkdir()
        shutil.copy2(source, target / source.name)
        return
    target.mkdir(exist_ok=True)
    up, work = layer / "up", layer / "work"
    options = f"lowerdir={source},upperdir={up},workdir={work}"
    try:
        run_all(
            [("mkdir", "-p", str(up), str(work)), ("mount", "-t", "overlay", "overlay", "-o", options, str(target))]
        )
    except RehearsalError:
        run_all([("mount", "--bind", "-o", "ro", str(source), str(target))])


def play(tree: Tree, host: str) -> NoReturn:
    """As process 1 of the container: become the entry point, which is process 1 of a real container, too."""
    plan: Plan = tree.read("plan")
    image = tree.image(host)
    variables = plan.variables(tree, host)
    run_all([("mount", "-t", "proc", "proc", f"{image}/proc")])
    os.chroot(image)
    os.chdir("/")
    command = plan.request.command
    program = shutil.which(command[0], path=variables["PATH"]) or command[0]
    os.execve(program, command, variables)


def _name_later(seconds: float, image: Path, names: str) -> None:
    """From a process of its own, which ends with the host's process group."""
    if os.fork() == 0:
        time.sleep(seconds)
        (image / "etc" / "hosts").write_text(names, encoding="utf-8")
        os._exit(0)


def main(argv: Sequence[str]) -> int:
    """``enter`` or ``play``, with the tree and the host."""
    step, tree, host = argv[0], Tree(Path(argv[1])), argv[2]
    try:
        if step == "enter":
            enter(tree, host)
        play(tree, host)
    except (RehearsalError, OSError) as error:
        tree.refusal(host).write_text(str(error), encoding="utf-8")
        print(f"rehearsal: host {host} was not started: {error}", file=sys.stderr, flush=True)
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
