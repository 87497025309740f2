"""What a rehearsal compares: the software that ran with the image's, the worlds that trained with the one started."""

import glob
import json
import re
import subprocess
import tarfile
from typing import Dict, Optional, Tuple

from lightning_sm.rehearse._outcome import Outcome, Status
from lightning_sm.rehearse._plan import RehearsalFolder
from lightning_sm.rehearse._request import Distribution, RehearsalRequest, Sdk
from lightning_sm.rehearse._sdk import PROCESSES_PER_HOST

__all__ = ["compare_software", "compare_worlds", "unused_package"]

_IMAGE = re.compile(r"pytorch-training:(?P<torch>\d+\.\d+)\S*?-(?P<processor>cpu|gpu)-py3(?P<minor>\d+)")
_IMPORT = re.compile(r"^\s*(?:import|from)\s+lightning_sm\b", re.MULTILINE)
_VERSIONS = """
import importlib.metadata, json, sys
found = {"Python": "%d.%d" % sys.version_info[:2]}
for name in ("torch", "lightning", "pytorch-lightning"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def compare_software(request: RehearsalRequest, folder: RehearsalFolder) -> str:
    """Return a sentence about the Python, torch and Lightning that ran, and those of the image."""
    python = str(folder.python / "bin" / "python")
    versions: Dict[str, str] = json.loads(subprocess.check_output([python, "-c", _VERSIONS]))
    gpus = _gpus()
    here = ", ".join(f"{name} {version}" for name, version in versions.items())
    text = f"The job ran with {here} and {gpus or 'no'} GPU{'s' * (gpus > 1)}"
    match = _IMAGE.search(request.image or "")
    if match is None:
        text += "; the image brings a Python and torch of its own"
    else:
        image = f"Python 3.{match['minor']}, torch {match['torch']}"
        text += f"; the image has {image}, for {'GPUs' if match['processor'] == 'gpu' else 'CPUs'}"
    return f"{text}. AWS's images have no Lightning: versions that requirements.txt leaves open may be others there."


def unused_package(request: RehearsalRequest, folder: RehearsalFolder) -> Optional[str]:
    """Say what will happen if several processes start and no file of the source imports this package."""
    started = max(_started(request).values())
    if started == 1 or not folder.archive.exists():
        return None
    with tarfile.open(str(folder.archive)) as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".py") else None
            if file is not None and _IMPORT.search(file.read().decode("utf-8", "replace")):
                return None
    return (
        f"No file of the source imports lightning_sm: the {started} processes train together only if the program "
        "itself gives its Trainer num_nodes, devices and strategy; else each trains alone."
    )


def compare_worlds(request: RehearsalRequest, outcome: Outcome) -> Optional[str]:
    """Say whether the processes of a completed job trained in another world than the one that was started."""
    started = _started(request)
    if outcome.status is not Status.COMPLETED or max(started.values()) == 1:
        return None
    number = max(started.values())
    if not any(host.worlds for host in outcome.hosts):
        return (
            f"{number} processes were started as one job, and none told of a process group (Lightning prints "
            "`MEMBER: 1/N` for each): if they formed none, each has trained alone, on all data."
        )
    alone = [host for host in outcome.hosts if host.worlds and max(host.worlds) < started[host.host]]
    if alone:
        shown = ", ".join(f"{host.host} in a world of {max(host.worlds)}" for host in alone)
        return f"{number} processes were started as one job, but did not train together: {shown}."
    return None


def _started(request: RehearsalRequest) -> Dict[str, int]:
    """The number of processes that each host's launcher starts together."""
    count = request.processes or _gpus() or 1
    sent = (request.hyperparameter(PROCESSES_PER_HOST) or "").strip('"')
    if sent.isdigit():
        count = int(sent)
    together: Tuple[Tuple[str, ...], ...] = (request.hosts,)
    if request.distribution is Distribution.NONE:
        count = 1
    elif request.distribution is Distribution.TORCH_DISTRIBUTED:
        together = tuple(group.hosts for group in request.groups)
    elif request.sdk is Sdk.V3:
        # Its driver of mpirun starts all ranks on one host.
        together = tuple((host,) for host in request.hosts)
    else:
        together = (request.distribution_hosts,)
    return {**dict.fromkeys(request.hosts, 1), **{host: len(each) * count for each in together for host in each}}


def _gpus() -> int:
    return len(glob.glob("/dev/nvidia[0-9]*"))
