"""Runs rehearsals of the launches, and of a source directory of ours, in processes of their own."""

import shutil
from pathlib import Path

from tests.helpers.rehearsal import command_line, needs, run_rehearsal
from tests.toolkits.launches import LAUNCHES

__all__ = ["fill_source", "needs_launch", "rehearse", "rehearse_launch"]

_HERE = Path(__file__).parent
_TESTS = _HERE.parent


def fill_source(folder):
    """Make a source directory of the program and everything of ours that it needs in the container."""
    folder.mkdir(parents=True)
    for path in (_HERE / "train.py", _HERE / "cli.py", _TESTS / "helpers" / "tiny.py"):
        shutil.copy(path, folder)
    shutil.copytree(_HERE / "standin_bin", folder / "standin_bin")
    shutil.copytree(_TESTS / "standins" / "smdistributed", folder / "smdistributed")
    return folder


def rehearse(source, folder, *arguments, exit_code=0, timeout=170, isolation="netns"):
    """Run one rehearsal to its end, which has this exit code."""
    options = ("--isolation", isolation, "--output-dir", folder, "--timeout", f"{timeout - 10}s", "--json")
    return run_rehearsal(command_line(source, *options, *arguments), exit_code=exit_code, timeout=timeout)


def needs_launch(name):
    """Skip where this machine cannot rehearse this launch."""
    launch = LAUNCHES[name]
    # The toolkit starts programs under mpirun through mpi4py, and SDK v3's driver does too.
    is_mpi = not {"mpi", "pytorchddp", "smdistributed"}.isdisjoint(launch.options)
    return needs("netns", torch=True, mpi=is_mpi, v3="v3" in launch.options)


def rehearse_launch(name, folder):
    """Rehearse one of :data:`tests.toolkits.launches.LAUNCHES`."""
    launch = LAUNCHES[name]
    source = fill_source(folder / "source")
    return rehearse(source, folder / "out", *launch.options, "train.py", *launch.arguments)
