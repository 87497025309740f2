"""Runs rehearsals in processes of their own, and reads what each rank of them wrote."""

import json
import shutil
import tarfile
from pathlib import Path

from tests.helpers.rehearsal import Rehearsed, command_line, needs, run_rehearsal
from tests.toolkits.launches import LAUNCHES

__all__ = ["RehearsedRanks", "fill_source", "needs_launch", "rehearse", "rehearse_launch"]

_HERE = Path(__file__).parent
_TESTS = _HERE.parent


class RehearsedRanks:
    """How a rehearsal ended, and by host what each of its ranks wrote."""

    def __init__(self, done: Rehearsed, folder):
        self.exit_code, self.log, self.summary = done.exit_code, done.log, done.summary
        self.ranks = _read_ranks(folder / "output.tar.gz")

    def on(self, host):
        """What the ranks of a host wrote, by local rank."""
        return [self.ranks[name] for name in sorted(self.ranks) if name.startswith(f"{host}-")]

    @property
    def topologies(self):
        """What each rank printed before it joined, as the summary has it: host and content."""
        return [(host["host"], each) for host in self.summary["hosts"] for each in host["topologies"]]


def fill_source(folder):
    """Make a source directory of the program and everything of ours that it needs in the container."""
    folder.mkdir(parents=True)
    for path in (_HERE / "train.py", _HERE / "cli.py", _TESTS / "helpers" / "tiny.py"):
        shutil.copy(path, folder)
    shutil.copytree(_HERE / "standin_bin", folder / "standin_bin")
    shutil.copytree(_TESTS / "standins" / "smdistributed", folder / "smdistributed")
    return folder


def rehearse(source, folder, *arguments, timeout=170, isolation="netns"):
    """Run one rehearsal to its end."""
    options = ("--isolation", isolation, "--output-dir", folder, "--timeout", f"{timeout - 10}s", "--json")
    done = run_rehearsal(command_line(source, *options, *arguments), timeout=timeout)
    return RehearsedRanks(done, Path(folder))


def needs_launch(name):
    """Skip where this machine cannot rehearse this launch."""
    launch = LAUNCHES[name]
    # The toolkit starts programs under mpirun through mpi4py, and SDK v3's driver does too.
    return needs("netns", torch=True, mpi=launch.is_mpi, v3=launch.is_v3)


def rehearse_launch(name, folder):
    """Rehearse one of :data:`tests.toolkits.launches.LAUNCHES`."""
    launch = LAUNCHES[name]
    source = fill_source(folder / "source")
    return rehearse(source, folder / "out", *launch.options, "train.py", *launch.arguments)


def _read_ranks(archive):
    if not archive.exists():
        return {}
    with tarfile.open(archive) as packed:
        found = [member for member in packed.getmembers() if member.name.startswith("algo-")]
        return {member.name[: -len(".json")]: json.load(packed.extractfile(member)) for member in found}
