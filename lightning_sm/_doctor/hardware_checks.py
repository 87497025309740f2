"""Checks of the host's hardware and limits: GPUs, CPUs, memory, shared and temporary files, open files, processes."""

import os
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import gpus, is_real_instance, of_this_host, read_text

__all__ = ["CHECKS"]

_GIB = 1024**3
# GPUs of each type: sagemaker/image_uri_config/instance_gpu_info.json of SDK v2; p5en: meta-pytorch/torchx PR 995.
_GPUS: Mapping[str, int] = {
    **dict.fromkeys(("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"), 8),
    **dict.fromkeys(("ml.p5.48xlarge", "ml.p5en.48xlarge", "ml.g5.48xlarge"), 8),
    **{"ml.p3.2xlarge": 1, "ml.p3.8xlarge": 4, "ml.p3.16xlarge": 8},
    **{f"ml.g4dn.{size}xlarge": 1 for size in ("", 2, 4, 8, 16)},
    **{f"ml.g5.{size}xlarge": 1 for size in ("", 2, 4, 8, 16)},
    **{"ml.g4dn.12xlarge": 4, "ml.g5.12xlarge": 4, "ml.g5.24xlarge": 4},
}
# Docker's default is 64 MiB, with which loader workers die of a bus error: aws/sagemaker-pytorch-training-toolkit
# issue 117.
_LEAST_SHARED = _GIB
_LEAST_FREE = 2 * _GIB
# Loader workers share tensors by file descriptors: torch, "Multiprocessing package", file_descriptor.
_LEAST_FILES = 4096
_LEAST_PROCESSES = 4096
_LIMITS = {
    "Max open files": (
        _LEAST_FILES,
        "-n",
        "Call torch.multiprocessing.set_sharing_strategy('file_system') in the script, or resource.setrlimit for more.",
    ),
    "Max processes": (
        _LEAST_PROCESSES,
        "-u",
        "Use fewer loader workers, or resource.setrlimit in the script for more.",
    ),
}
# The fork of loader workers beside gloo's threads can deadlock before: CPython issue 112275.
_FORK_REPAIRED = (3, 12)


def _gpus(machine: Machine) -> Iterator[Finding]:
    """The container's GPUs against instance type (error), ``SM_NUM_GPUS`` and ``CUDA_VISIBLE_DEVICES``."""
    job, seen = machine.job, gpus(machine)
    kind = job.current_instance_type
    wrong = False
    expected = _GPUS.get(kind or "")
    if expected is not None and seen < expected and is_real_instance(machine) is not False:
        wrong = True
        text = f"{kind} has {expected} GPU(s), and this container sees {seen or 'none'}."
        hint = (
            "Use a GPU image. If it is one, the host is faulty: restart the job. Local mode and rehearsals have no GPU."
        )
        yield Finding("GPUs", Status.ERROR if is_real_instance(machine) else Status.WARNING, text, hint)
    elif job.num_gpus is not None and job.num_gpus != seen and job.sources.get("num_gpus") == "SM_NUM_GPUS":
        wrong = True
        text = f"SM_NUM_GPUS={job.num_gpus}, and this container sees {seen or 'none'}."
        hint = "Under mpirun it is the main host's; hosts with unequal GPUs need groups. Else look for what sets it."
        yield Finding("GPUs", Status.WARNING, text, hint)
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and seen:
        shown = [each for each in visible.split(",") if each.strip() not in ("", "-1", "NoDevFiles")]
        if len(shown) < seen:
            wrong = True
            text = f"CUDA_VISIBLE_DEVICES={visible or '(empty)'} hides {seen - len(shown)} of {seen} GPU(s)."
            yield Finding("GPUs", Status.WARNING, text, "Unset it; launchers choose each process's GPU by LOCAL_RANK.")
    if not wrong:
        yield Finding("GPUs", Status.OK, f"{seen or 'none'}{f', {kind}' if kind else ''}")


def _cpus(machine: Machine) -> Iterator[Finding]:
    """CPUs and ``OMP_NUM_THREADS`` for each process.

    ``OMP_NUM_THREADS`` is set to 1 by torchrun where the user has not set it (``torch/distributed/run.py``).
    """
    count = _cpu_limit(machine) or os.cpu_count() or 1
    topology = machine.topology
    processes = (topology.local_world_size if topology else None) or 1
    text = f"{count:g} for {processes} process(es)" if processes > 1 else f"{count:g}"
    threads = machine.environ.get("OMP_NUM_THREADS")
    each = int(count // processes)
    if count < processes:
        hint = "Start fewer processes per host, or use a larger instance."
        yield Finding("CPUs", Status.WARNING, f"{text}: they take turns.", hint)
    elif threads == "1" and each > 1 and not gpus(machine) and _is_torchrun(machine):
        text = f"{text}, and OMP_NUM_THREADS=1 (torchrun's default): each process computes on one of {each}."
        yield Finding(
            "CPUs", Status.WARNING, text, f"Pass environment={{'OMP_NUM_THREADS': '{each}'}} to the estimator."
        )
    else:
        yield Finding("CPUs", Status.OK, text)


def _is_torchrun(machine: Machine) -> bool:
    return machine.job.in_container and "TORCHELASTIC_RUN_ID" in machine.environ


def _cpu_limit(machine: Machine) -> Optional[float]:
    """Return the CPUs of the container's cgroup, or ``None`` without a limit."""
    both = (read_text(machine.path("/sys/fs/cgroup/cpu.max")) or "").split()
    if len(both) != 2:
        folder = "/sys/fs/cgroup/cpu"
        both = [read_text(machine.path(f"{folder}/cpu.cfs_{each}_us")) or "" for each in ("quota", "period")]
    quota, period = (_number(each) for each in both)
    return quota / period if quota is not None and quota > 0 and period else None


def _number(text: str) -> Optional[int]:
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def _memory(machine: Machine) -> Iterator[Finding]:
    """Memory of the host and limit of the container: a warning below 2 GiB."""
    lines = re.findall(r"^(\w+):\s+(\d{1,15}) kB", read_text(machine.path("/proc/meminfo")) or "", re.MULTILINE)
    names: Dict[str, str] = dict(lines)
    if "MemTotal" not in names:
        return
    total = int(names["MemTotal"]) * 1024
    free = int(names.get("MemAvailable", names["MemTotal"])) * 1024
    paths = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    limits = [_number(read_text(machine.path(path)) or "") for path in paths]
    limit = min(total, *(each if each is not None else total for each in limits))
    text = f"{_gib(free)} of {_gib(total)} are free"
    if limit < total:
        text = f"the container may use {_gib(limit)} of the host's {_gib(total)}, {_gib(free)} are free"
    if min(free, limit) < _LEAST_FREE:
        hint = "Use a larger instance, fewer loader workers, or end what else runs; the kernel kills what exceeds it."
        yield Finding("memory", Status.WARNING, f"{text}.", hint)
    else:
        yield Finding("memory", Status.OK, text)


def _gib(number: float) -> str:
    return f"{number / _GIB:.1f} GiB" if number >= _GIB / 10 else f"{number / 1024**2:.0f} MiB"


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    """The size of ``/dev/shm``, through which loader workers hand over batches: a warning below 1 GiB."""
    folder = machine.path("/dev/shm")
    size = _mounted_size(machine)
    if size is None:
        disk = _disk(folder)
        if disk is None:
            return
        size = disk.f_frsize * disk.f_blocks
    text = f"/dev/shm has {_gib(size)}"
    if size < _LEAST_SHARED:
        hint = "Run the container with a larger one (docker run --shm-size=8g), or use num_workers=0."
        text = f"{text}: loader workers that hand over larger batches die of a bus error."
        yield Finding("shared memory", Status.WARNING, text, hint)
    else:
        yield Finding("shared memory", Status.OK, text)


def _disk(folder: Path) -> Optional[os.statvfs_result]:
    try:
        return os.statvfs(folder) if os.path.isdir(folder) else None
    except OSError:
        return None


def _mounted_size(machine: Machine) -> Optional[int]:
    """Return the size that ``/dev/shm`` is mounted with, such as Docker's ``size=65536k``."""
    mounts = re.findall(r"^\S+ /dev/shm \S+ (\S+)", read_text(machine.path("/proc/mounts")) or "", re.MULTILINE)
    found = re.search(r"(?:^|,)size=(\d{1,18})([kKmMgG]?)(?:,|$)", mounts[-1]) if mounts else None
    if found is None:
        return None
    units: Dict[str, int] = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    return int(found.group(1)) * units[found.group(2).lower()]


def _limits(machine: Machine) -> Iterator[Finding]:
    """Limits of open files and processes; ssh sets its own for ranks that mpirun starts on other hosts."""
    limits = read_text(machine.path("/proc/self/limits")) or ""
    for name, (least, option, hint) in _LIMITS.items():
        found = re.search(rf"^{name}\s+(\d{{1,20}}|unlimited)\s", limits, re.MULTILINE)
        if found is None:
            continue
        what, limit = name[4:], found.group(1)
        if machine.job.in_container and limit != "unlimited" and int(limit) < least:
            text = f"ulimit {option} is {limit}: loader workers and threads of NCCL can exceed it."
            yield Finding(what, Status.WARNING, text, hint)
        else:
            yield Finding(what, Status.OK, f"at most {limit}")
    pids = _number(read_text(machine.path("/sys/fs/cgroup/pids.max")) or "")
    if pids is not None and pids < _LEAST_PROCESSES:
        text = f"the container may have {pids} processes and threads."
        yield Finding("processes", Status.WARNING, text, "Run the container with docker run --pids-limit=-1.")


def _temporary_files(machine: Machine) -> Iterator[Finding]:
    """Space in ``TMPDIR``, by default ``/tmp``: a warning below 2 GiB."""
    given = machine.environ.get("TMPDIR")
    folder = machine.path(given or "/tmp")
    disk = _disk(folder)
    if disk is None:
        if given:
            text = f"TMPDIR={given} is not a directory."
            yield Finding("temporary files", Status.WARNING, text, "Unset TMPDIR, or create that directory.")
        return
    free = disk.f_frsize * disk.f_bavail
    text = f"{folder} has {_gib(free)} free"
    if free < _LEAST_FREE:
        hint = "A larger volume_size, or TMPDIR on another volume."
        yield Finding("temporary files", Status.WARNING, f"{text}.", hint)
    elif not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} is not writable: loader workers, torch.compile and caches need it."
        yield Finding("temporary files", Status.WARNING, text, "Set TMPDIR to a directory that is.")
    else:
        yield Finding("temporary files", Status.OK, text)


def _fork(machine: Machine) -> Iterator[Finding]:
    """Python before 3.12 on several processes without GPUs, where forks of loader workers can deadlock."""
    topology = machine.topology
    distributed = topology is not None and (topology.num_nodes > 1 or (topology.world_size or 1) > 1)
    if distributed and not gpus(machine) and sys.version_info[:2] < _FORK_REPAIRED:
        text = f"Python {sys.version.split()[0]} on CPUs: about one in a thousand forks of loader workers deadlocks."
        hint = "persistent_workers=True or multiprocessing_context='forkserver' in the DataLoader, or Python 3.12."
        yield Finding("fork", Status.WARNING, text, hint)


CHECKS: Tuple[Check, ...] = tuple(
    of_this_host(check) for check in (_gpus, _cpus, _memory, _shared_memory, _limits, _temporary_files, _fork)
)
