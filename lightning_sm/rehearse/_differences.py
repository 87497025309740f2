"""What works here but not on SageMaker, or the other way. The summary says it: a rehearsal must not promise more."""

from __future__ import annotations

import os
from typing import Iterator, Tuple

from ._checks import container_path
from ._distributions import PROCESSES
from ._request import HOMOGENEOUS, RehearsalRequest

__all__ = ["differences"]

_ACCELERATED = ("ml.p", "ml.g", "ml.trn")


def differences(request: RehearsalRequest, isolation: str) -> Tuple[str, ...]:
    """A sentence for each."""
    return (*_of_isolation(request, isolation), *_of_sdk(request), *_of_launcher(request), *_of_channels(request))


def _of_isolation(request: RehearsalRequest, isolation: str) -> Iterator[str]:
    if isolation == "loopback":
        yield (
            "Hosts share this machine's file system, /tmp, host name and ports; on SageMaker they share nothing. "
            "A file that one host writes outside its base directory is seen by the others only here."
        )
        yield "/opt/ml is moved by SAGEMAKER_BASE_DIR: a program that names /opt/ml literally fails only here."
        yield "Hosts are named 127.0.0.K; on SageMaker algo-K, and socket.gethostname() says so."
        if request.channels:
            yield "Channels are links to your own folders: a program that writes into one changes your data."
    else:
        yield "Hosts have no way out of their network: downloads and a program's own pip install fail only here."
    if isolation == "userns":
        yield "Outside /opt, /etc and /tmp the hosts see your own files, and what they write there stays."
    if request.limits.interrupt_after is not None:
        yield "The spot interruption comes without SageMaker's SIGTERM and 120 s (they never reach the program anyway)."


def _of_sdk(request: RehearsalRequest) -> Iterator[str]:
    if request.sdk == "v3":
        yield from _of_v3(request)
        return
    types = sorted({group.instance_type for group in request.groups})
    cpu = [name for name in types if not name.startswith(_ACCELERATED)]
    if request.distribution == "torch_distributed":
        if cpu:
            yield f"SDK v2 refuses torch_distributed on {', '.join(cpu)}: only GPU and Trainium instances."
        if len(request.groups) > 1:
            yield ("SDK v2 takes groups only with mpi and smdistributed; each group is a torchrun world of its own.")
    if request.distribution in ("smdistributed", "pytorchddp"):
        yield f"SDK v2 refuses {request.distribution} for framework_version above 2.2.0, unless image_uri is given."
    if len(request.groups) > 1 and request.groups[0].name != HOMOGENEOUS and request.local_mode_files:
        yield "Local mode has no instance groups."


def _of_channels(request: RehearsalRequest) -> Iterator[str]:
    for channel in request.channels:
        settings = dict(channel.settings)
        if settings["TrainingInputMode"] == "FastFile":
            yield f"Channel {channel.name} is a plain folder here; FastFile's is read-only, and read on demand."
        if settings["S3DistributionType"] == "ShardedByS3Key":
            yield f"Every host has all of channel {channel.name} here; ShardedByS3Key gives each a share."


def _of_launcher(request: RehearsalRequest) -> Iterator[str]:
    if request.sdk == "v2" and request.distribution != "mpi" and request.hyperparameter(PROCESSES) is not None:
        yield f"Processes per host come from {PROCESSES}; SageMaker counts the instance's GPUs, 1 on CPU."
    if request.distribution in ("smdistributed", "pytorchddp"):
        path = container_path(request, os.environ)
        if not any(os.access(os.path.join(folder, "smddprun"), os.X_OK) for folder in path.split(os.pathsep)):
            yield "There is no smddprun here, so only OMPI_* variables tell a rank; images with SMDDP set RANK as well."
    if request.distribution in ("mpi", "smdistributed", "pytorchddp"):
        yield "Images for GPU on Amazon Linux 2023 have no mpi4py: bring it by requirements.txt."


def _of_v3(request: RehearsalRequest) -> Iterator[str]:
    for name, value in request.hyperparameters:
        if "." in name:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: shell variables have no dots."
        if "'" in value:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: its value has a single quote."
    for channel in request.channels:
        if "-" in channel.name or "." in channel.name:
            yield f"SDK v3's driver ends the job at the channel {channel.name!r}: its name is not a shell variable's."
    if request.distribution == "mpi" and len(request.hosts) > 1:
        yield "SDK v3's MPI driver starts all its ranks on the first host (-np counts one host's processes)."
    if request.code is not None and (request.code / "requirements.txt").exists():
        yield "SDK v3 installs requirements.txt only when SourceCode(requirements=...) names it; it was not installed."
