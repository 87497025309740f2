"""What the summary of a rehearsal says beside how the job ended.

In what it differs from SageMaker, which software ran, and whether the processes that were started trained together.
"""

import glob
import json
import os
import shutil
import subprocess
from typing import Dict, Optional, Tuple

from lightning_sm.launch import Image, find_image
from lightning_sm.rehearse._outcome import Outcome
from lightning_sm.rehearse._plan import RehearsalFolder, container_path
from lightning_sm.rehearse._request import PROCESSES_PER_HOST, Isolation, RehearsalRequest

__all__ = ["compare_software", "compare_worlds", "differences"]

_ACCELERATED = ("ml.p", "ml.g", "ml.trn")
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
    # A body may name any image; an address has a slash.
    image = find_image(request.image, "") if "/" in request.image else Image(request.image)
    brings = "brings a Python and torch of its own"
    if image.python is not None:
        processors = "GPUs" if image.processor == "gpu" else "CPUs"
        brings = f"has Python {image.python}, torch {image.torch}, for {processors}"
    return (
        f"The job ran with {here} and {gpus or 'no'} GPU{'s' * (gpus > 1)}; the image {brings}. AWS's images have no "
        "Lightning: versions that requirements.txt leaves open may be others there."
    )


def compare_worlds(request: RehearsalRequest, outcome: Outcome) -> Optional[str]:
    """Say whether the processes of a completed job trained in another world than the one that was started."""
    started = _started(request)
    number = max(started.values())
    if outcome.status != "Completed" or number == 1:
        return None
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
    sent = request.hyperparameters.get(PROCESSES_PER_HOST, "").strip('"')
    count = int(sent) if sent.isdigit() else request.options.processes or _gpus() or 1
    together: Tuple[Tuple[str, ...], ...] = (request.distribution_hosts,)
    if request.distribution == "none":
        count, together = 1, (request.hosts,)
    elif request.distribution == "torch_distributed":
        together = tuple(group.hosts for group in request.groups)
    elif request.sdk == "v3":
        # Its driver of mpirun starts all ranks on one host.
        together = tuple((host,) for host in request.hosts)
    return {**dict.fromkeys(request.hosts, 1), **{host: len(each) * count for each in together for host in each}}


def _gpus() -> int:
    return len(glob.glob("/dev/nvidia[0-9]*"))


def differences(request: RehearsalRequest, isolation: Isolation) -> Tuple[str, ...]:
    """Return a sentence for each thing that works here and not on SageMaker, or the other way."""
    distribution, is_v2 = request.distribution, request.sdk == "v2"
    is_loopback = isolation == "loopback"
    is_torchrun = is_v2 and distribution == "torch_distributed"
    is_smddp = distribution in ("smdistributed", "pytorchddp")
    has_smddprun = shutil.which("smddprun", path=container_path(request, os.environ)) is not None
    on_cpu = sorted({each.instance_type for each in request.groups if not each.instance_type.startswith(_ACCELERATED)})
    modes = {each.name: each.settings["TrainingInputMode"] for each in request.channels}
    streamed = [f"{name}: {mode}" for name, mode in modes.items() if mode != "File"]
    sharded = [each.name for each in request.channels if each.settings["S3DistributionType"] == "ShardedByS3Key"]
    found = {
        "Hosts have no route to the internet: downloads and a program's own pip install fail only here.": (
            isolation != "loopback"
        ),
        "Hosts share this machine's file system, /tmp, host name and ports; on SageMaker they share nothing.": (
            is_loopback
        ),
        "/opt/ml is moved by SAGEMAKER_BASE_DIR: a program that names /opt/ml literally fails only here.": is_loopback,
        "Hosts are named 127.0.0.K; on SageMaker algo-K, which socket.gethostname() returns too.": is_loopback,
        "Channels are links to your own folders: a program that writes into one changes your data.": (
            is_loopback and bool(request.channels)
        ),
        "Outside /opt, /etc and /tmp the hosts see your own files, and what they write there stays.": (
            isolation == "userns"
        ),
        f"SDK v2 refuses torch_distributed on {', '.join(on_cpu)}: only GPU and Trainium instances.": (
            is_torchrun and bool(on_cpu)
        ),
        "SDK v2 takes groups only with mpi and smdistributed; each group is a torchrun world of its own.": (
            is_torchrun and len(request.groups) > 1
        ),
        f"SDK v2 refuses {distribution} for framework_version above 2.2.0, unless image_uri is given.": is_smddp,
        f"Processes per host come from {PROCESSES_PER_HOST}; SageMaker counts the instance's GPUs, 1 on CPU.": (
            is_v2 and request.options.processes is not None and distribution not in ("mpi", "smp")
        ),
        "There is no smddprun here, so ranks have only OMPI_* variables; images with SMDDP set RANK as well.": (
            is_smddp and not has_smddprun
        ),
        "Images for GPU on Amazon Linux 2023 have no mpi4py: add it to requirements.txt.": request.uses_mpirun,
        f"Channels are plain folders here ({', '.join(streamed)}); on SageMaker FastFile is a read-only folder that is "
        "read on demand, and Pipe a stream.": bool(streamed),
        f"Every host has all objects here ({', '.join(sharded)}); ShardedByS3Key gives each a share.": bool(sharded),
    }
    return tuple(text for text, applies in found.items() if applies)
