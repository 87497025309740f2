"""The process that holds the namespaces of a rehearsal, and ends and removes everything when its parent has ended.

In namespaces it is process 1, so all their processes end with it. Its standard input is a pipe: end-of-file means that
the process that started it has ended, however it did.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._checks import namespace_options
from lightning_sm.rehearse._host import kill_marked
from lightning_sm.rehearse._plan import RehearsalFolder, tools_path
from lightning_sm.rehearse._request import Isolation

__all__ = ["hold", "main"]


@contextlib.contextmanager
def hold(isolation: Isolation, folder: RehearsalFolder) -> Iterator[Tuple[str, ...]]:
    """Start the holder; give the command that enters its namespaces, empty for ``loopback``.

    Nothing of the rehearsal runs any more, and its folder is removed, when this has ended.

    Raises:
        RehearsalError: It could not be started, or it was killed.
    """
    code = f"from {__name__} import main; main()"
    command: Tuple[str, ...] = (sys.executable, "-c", code, str(folder.root))
    if isolation != "loopback":
        command = ("unshare", *namespace_options(isolation), "--mount-proc", "--kill-child", *command)
    # It imports this very package, wherever this process found it.
    package = str(Path(__file__).resolve().parents[2])
    known = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    holder = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A session of its own: Ctrl-C is for this process.
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(known), "PATH": tools_path()},
    )
    enter: Tuple[str, ...] = ()
    if isolation != "loopback":
        enter = (
            *("nsenter", f"--target={holder.pid}", "--net", "--mount", "--uts", "--ipc"),
            f"--pid=/proc/{holder.pid}/ns/pid_for_children",
            *(("--user", "--preserve-credentials") if isolation == "userns" else ()),
        )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise RehearsalError("The process that holds the hosts' namespaces could not be started.")
        yield enter
        if holder.poll() is not None:
            raise RehearsalError(
                f"The process that holds the hosts' namespaces was killed (it ended with {holder.returncode}).",
                hint="The kernel kills processes when memory runs out: dmesg says so. Try fewer hosts or processes.",
            )
    finally:
        holder.communicate()


def main() -> None:
    """Wait for the end of the standard input; then end and remove what is left of the rehearsal in the given folder."""
    folder = RehearsalFolder(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.buffer.read()
    kill_marked(str(folder.root))
    folder.remove()
