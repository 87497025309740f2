"""Checks of AWS's SMDDP library: whether it is used here, which collectives it speeds up, and its buffers."""

import json
import os
import signal
import subprocess
import sys
from typing import Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._distributed.backend import BackendChoice, choose_backend
from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import gpus, is_importable

__all__ = ["CHECKS"]

# AWS, "Supported frameworks, AWS Regions, and instances types" of the SMDDP library.
_TYPES = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
_SECONDS = 15.0
_ELSEWHERE = (
    "Use the distribution torch_distributed for NCCL (pytorchddp requests SMDDP's launcher); SMDDP is in AWS's PyTorch "
    "images up to 2.5.1, on ml.p3dn, ml.p4d and ml.p4de."
)
# Sizes in bytes; AllGather of larger inputs is left to NCCL: AWS, SageMaker developer guide, page
# model-parallel-core-features-v2-smddp-allgather.
_SCRATCH, _SORT = "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "SMDDP_AG_SORT_BUFFER_SIZE_BYTES"
_DEFAULTS: Mapping[str, int] = {_SCRATCH: 16 * 1024**2, _SORT: 128 * 1024**2}
_PAGE = 8192
# A second process that poses as a rank of mpirun would end the job.
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_")
_PROGRAM = """
import json
from lightning_sm._distributed.backend import choose_backend
from lightning_sm._sagemaker.job import TrainingJob
choice = choose_backend(None, "cuda", TrainingJob.resolve())
print("\\n" + json.dumps([choice.backend, choice.reason]))
"""


def _smddp(machine: Machine) -> Iterator[Finding]:
    """Whether the strategy uses SMDDP, or why not; an error if importing it ends the process."""
    job = machine.job
    if not job.in_container:
        return
    kind = job.current_instance_type or "this instance type"
    if not machine.is_here:
        if job.asks_for_smddp and kind not in _TYPES:
            text = f"{kind} is not supported by SMDDP, which this job's distribution requests; NCCL or gloo is used."
            yield Finding("SMDDP", Status.WARNING, text, _ELSEWHERE)
        return
    if not (job.asks_for_smddp and gpus(machine)):
        choice = choose_backend(None, "cuda" if gpus(machine) else "cpu", job)
        # Where the library is missing, the line of the distribution has said so.
        is_wanted = job.asks_for_smddp and is_importable("smdistributed")
        text = f"not used, because {choice.reason}"
        yield Finding("SMDDP", Status.WARNING if is_wanted else Status.OK, text, _ELSEWHERE if is_wanted else "")
        return
    found, problem = _choose_elsewhere(machine.environ)
    if found is None:
        text = f"importing SMDDP {problem}, and so the training, too."
        hint = "Use distribution={'torch_distributed': {'enabled': True}}, or process_group_backend: nccl."
        yield Finding("SMDDP", Status.ERROR, text, hint)
    elif not found.is_smddp:
        yield Finding("SMDDP", Status.WARNING, f"not used, because {found.reason}", _ELSEWHERE)
    elif len(job.world_hosts) == 1:
        yield Finding("SMDDP", Status.OK, "used; it speeds up communication between hosts, and this job has one")
    else:
        yield Finding("SMDDP", Status.OK, f"used, because {found.reason}")


def _choose_elsewhere(environ: Mapping[str, str]) -> Tuple[Optional[BackendChoice], str]:
    """Choose the backend in another process, because the closed library can end the one that imports it."""
    variables: Dict[str, str] = {name: each for name, each in environ.items() if not name.startswith(_MPI_PREFIXES)}
    paths = [*environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"does not return within {_SECONDS:.0f} s"
    if done.returncode != 0:
        return None, f"ends the process with {_exit(done.returncode)}"
    backend, reason = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
    return BackendChoice(backend, reason), ""


def _exit(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def _collectives(machine: Machine) -> Iterator[Finding]:
    """Which collectives SMDDP speeds up under this launcher: AllReduce (DDP) or AllGather (FSDP, DeepSpeed).

    ``SMDATAPARALLEL_OPTIMIZE_SDP=true``, set by the user, chooses AllGather under ``mpirun``. Source: AWS,
    "Introduction to the SageMaker AI distributed data parallelism library".
    """
    job = machine.job
    if not (job.in_container and job.asks_for_smddp and job.current_instance_type in _TYPES):
        return
    if machine.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP", "").lower() in ("true", "1"):
        text = "SMDATAPARALLEL_OPTIMIZE_SDP is set: AllGather (FSDP, DeepSpeed) is sped up, and DDP's AllReduce is not."
        yield Finding("SMDDP collectives", Status.WARNING, text, "Unset it for DDP; keep it for FSDP and DeepSpeed.")
    elif job.hyperparameters.enabled("sagemaker_torch_distributed_enabled"):
        text = "under torchrun AllGather (FSDP, DeepSpeed) is sped up, and DDP's AllReduce is not."
        hint = "For DDP leave torch_distributed out of the distribution."
        yield Finding("SMDDP collectives", Status.WARNING, text, hint)
    else:
        yield Finding("SMDDP collectives", Status.OK, "mpirun: AllReduce (DDP) is sped up, AllGather is not")


def _buffers(machine: Machine) -> Iterator[Finding]:
    """The sizes of SMDDP's buffers for AllGather, where they are set."""
    given = {name: machine.environ[name] for name in _DEFAULTS if machine.environ.get(name)}
    sizes = dict(_DEFAULTS)
    for name, text in given.items():
        if not text.isdecimal() or int(text) == 0 or int(text) % _PAGE:
            problem = f"{name}={text} is not a multiple of {_PAGE} bytes."
            yield Finding("SMDDP buffers", Status.ERROR, problem, f"Leave it out ({_DEFAULTS[name]}), or round it up.")
            return
        sizes[name] = int(text)
    world_size = (machine.topology.world_size if machine.topology else None) or 1
    if given and sizes[_SORT] * 8 < sizes[_SCRATCH] * world_size:
        enough = -(-sizes[_SCRATCH] * world_size // 8 // _PAGE) * _PAGE
        text = f"{_SORT}={sizes[_SORT]} is less than {enough}, an eighth of {_SCRATCH} times {world_size} processes."
        hint = f"Set it to {enough}; otherwise AllGather over all processes falls back to NCCL."
        yield Finding("SMDDP buffers", Status.WARNING, text, hint)
    elif given:
        yield Finding("SMDDP buffers", Status.OK, ", ".join(f"{name}={text}" for name, text in given.items()))


CHECKS: Tuple[Check, ...] = (_smddp, _collectives, _buffers)
