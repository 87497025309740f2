"""Checks of GPUs and the torch that uses them, CPUs and shared memory."""

import os
import re
import shutil
import sys
from typing import Iterator, Mapping, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine
from lightning_sm._doctor.host import gpus, is_real_instance, names_in, read_text, torch_build

__all__ = ["CHECKS"]

# Docker's default is 64 MiB, with which loader workers die of a bus error: aws/sagemaker-pytorch-training-toolkit
# issue 117.
_LEAST_SHARED = 1024**3
# The fork of loader workers beside gloo's threads can deadlock before: CPython issue 112275.
_FORK_REPAIRED = (3, 12)
# The driver that each major version of CUDA needs: NVIDIA, "CUDA Compatibility", minor version compatibility.
_DRIVERS: Mapping[str, int] = {"11": 450, "12": 525, "13": 580}


def visible_gpus(machine: Machine) -> Iterator[Finding]:
    """The container sees GPUs where the instance type has them, and ``CUDA_VISIBLE_DEVICES`` hides none.

    Saves: a training on CPUs that is paid as one on GPUs.
    """
    seen, kind = gpus(machine), machine.job.current_instance_type or ""
    if re.match(r"ml\.[pg]\d", kind) and not seen and is_real_instance(machine) is not False:
        yield Finding(
            "visible gpus",
            f"{kind} has GPUs, and this container sees none.",
            "Use a GPU image. If it is one, the host is faulty: start the job anew. Rehearsals have no GPU.",
            is_error=bool(is_real_instance(machine)),
        )
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    shown = [each for each in (visible or "").split(",") if each.strip() not in ("", "-1", "NoDevFiles")]
    if visible is not None and len(shown) < seen:
        yield Finding(
            "visible gpus",
            f"CUDA_VISIBLE_DEVICES={visible or '(empty)'} hides {seen - len(shown)} of {seen} GPU(s).",
            "Unset it; launchers choose each process's GPU by LOCAL_RANK.",
        )


def torch_of_the_image(machine: Machine) -> Iterator[Finding]:
    """torch is the one that the image was built with, and on GPUs one that is built with CUDA.

    ``SM_DLC_TORCH_VERSION`` is ``torch.__version__`` before ``requirements.txt`` was installed; the training toolkit
    sets it (``sagemaker_pytorch_container/training.py``). Absent under the SDK v3 drivers and in other images.

    Saves: a training on CPUs or without EFA, by another torch of ``requirements.txt``.
    """
    version, cuda = torch_build(machine)
    of_image = machine.environ.get("SM_DLC_TORCH_VERSION")
    if version and of_image and of_image != version:
        yield Finding(
            "torch of the image",
            f"The image's torch {of_image} was replaced by {version}, which is not built for this image.",
            "Find the line of requirements.txt that requires another torch (pip's output names it), and pin it.",
        )
    seen = gpus(machine)
    if version and not cuda and seen:
        yield Finding(
            "torch of the image",
            f"torch {version} is built without CUDA, and this host has {seen} GPU(s).",
            "Use the GPU image, or install a torch that is built with CUDA.",
            is_error=True,
        )


def gpu_driver(machine: Machine) -> Iterator[Finding]:
    """The GPU driver is new enough for the CUDA of torch; else an error.

    Saves: a training on CPUs, which Lightning chooses otherwise.
    """
    # "NVIDIA UNIX x86_64 Kernel Module  535.183.01  …", "NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  …"
    text = read_text(machine.path("/proc/driver/nvidia/version")) or ""
    found, (_, cuda) = re.search(r"Kernel Module.*?\s(\d{3}\.\d+(?:\.\d+)?)\b", text), torch_build(machine)
    needs = _DRIVERS.get(cuda.partition(".")[0], 0)
    if found is not None and int(found[1].partition(".")[0]) < needs:
        # The image's forward compatibility libraries.
        compat = any(name.startswith("libcuda.so") for name in names_in(machine.path("/usr/local/cuda/compat")))
        if not compat:
            yield Finding(
                "gpu driver",
                f"torch is built for CUDA {cuda}, which needs driver {needs}; this host has {found[1]}.",
                "Use an image with an older CUDA: a job cannot change the driver.",
                is_error=True,
            )


def threads(machine: Machine) -> Iterator[Finding]:
    """On CPUs, ``OMP_NUM_THREADS=1``, which torchrun sets (``torch/distributed/run.py``).

    Saves: most of a training on CPUs, of which each process uses one.
    """
    local = machine.topology.local_world_size if machine.topology is not None else None
    each = (os.cpu_count() or 1) // (local or 1)
    is_torchrun = machine.job.in_container and "TORCHELASTIC_RUN_ID" in machine.environ
    if is_torchrun and machine.environ.get("OMP_NUM_THREADS") == "1" and each > 1 and not gpus(machine):
        yield Finding(
            "threads",
            f"OMP_NUM_THREADS=1, which torchrun sets: each process computes on one of {each} CPUs.",
            f"Set OMP_NUM_THREADS={each} in the job's environment.",
        )


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """The size of ``/dev/shm``, through which loader workers hand over batches: below 1 GiB.

    Saves: the hours until a larger batch ends a worker.
    """
    folder = machine.path("/dev/shm")
    size = shutil.disk_usage(str(folder)).total if folder.is_dir() else _LEAST_SHARED
    if size < _LEAST_SHARED:
        yield Finding(
            "shared memory",
            f"/dev/shm has {size / 1024**2:.0f} MiB: loader workers with larger batches die of a bus error.",
            "Run the container with docker run --shm-size=8g, or set num_workers=0.",
        )


def fork(machine: Machine) -> Iterator[Finding]:
    """Python before 3.12 in several processes on CPUs, where one in a thousand forks of loader workers deadlocks.

    Saves: a job that hangs once in some epochs, up to its time limit.
    """
    topology = machine.topology
    is_distributed = topology is not None and (topology.num_nodes > 1 or (topology.world_size or 1) > 1)
    if is_distributed and not gpus(machine) and sys.version_info[:2] < _FORK_REPAIRED:
        yield Finding(
            "fork",
            f"Python {sys.version.split()[0]} on CPUs: about one in a thousand forks of loader workers deadlocks.",
            "persistent_workers=True or multiprocessing_context='forkserver' in the DataLoader, or Python 3.12.",
        )


CHECKS: Tuple[Check, ...] = (visible_gpus, torch_of_the_image, gpu_driver, threads, shared_memory, fork)
