"""Checks of the network between hosts and between GPUs: the main host, EFA, settings of NCCL, SMDDP."""

import errno
import fnmatch
import os
import socket
import time
from typing import Callable, Iterator, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine
from lightning_sm._doctor.host import efa_devices, gpus, is_real_instance, names_in

__all__ = ["CHECKS"]

_CONNECT_TIMEOUT = 2.0
# A host answers, or refuses, as soon as its network is up; its neighbour may be a moment ahead.
_CONNECT_FOR = 6.0


def main_host(machine: Machine) -> Iterator[Finding]:
    """From other hosts, the main host has an address of its own, and answers; else an error.

    Saves: the 10 (NCCL) or 30 minutes (gloo) before torch gives up.
    """
    topology = machine.topology
    if topology is None or topology.node_rank == 0 or topology.main_address is None or topology.main_port is None:
        return
    try:
        address = str(socket.getaddrinfo(topology.main_address, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return  # a host that has not started has no name; the training waits for it and says so
    if topology.main_address in machine.job.hosts and (address.startswith("127.") or address == "::1"):
        yield Finding(
            "main host",
            f"{topology.main_address} resolves to {address}, so that this host would connect to itself.",
            "Remove the name from /etc/hosts.",
            is_error=True,
        )
        return
    problem = _connect(address, topology.main_port)
    if problem is not None:
        yield Finding(
            "main host",
            f"{topology.main_address}:{topology.main_port} does not answer ({problem}).",
            "Allow all traffic between members of the job's security group, in both directions.",
            is_error=True,
        )


def _connect(address: str, port: int) -> Optional[str]:
    """Why the host does not answer; a port at which nothing listens yet is an answer."""
    deadline, number = time.monotonic() + _CONNECT_FOR, errno.ETIMEDOUT
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), _CONNECT_TIMEOUT).close()
            return None
        except ConnectionRefusedError:
            return None
        except OSError as error:
            number = error.errno or errno.ETIMEDOUT
        time.sleep(0.2)
    return os.strerror(number)


# The types for which the training toolkit sets FI_PROVIDER: SM_EFA_NCCL_INSTANCES in sagemaker_training/__init__.py.
_EFA_TYPES = (
    *("ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge"),
    *("ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.trn1.32xlarge", "ml.p6e-gb200.36xlarge"),
)


def efa(machine: Machine) -> Iterator[Finding]:
    """With several hosts, EFA where the instance type has it, and libfabric to use it.

    Saves: a training at a fraction of its speed, over TCP.
    """
    kind, devices = machine.job.current_instance_type or "", efa_devices(machine)
    if not machine.job.in_container or len(machine.job.world_hosts) < 2:
        return
    # Where AWS's EFA installer puts libfabric.
    folders = [machine.path(f"/opt/amazon/efa/{each}") for each in ("lib", "lib64")]
    if kind in _EFA_TYPES and not devices and is_real_instance(machine) is not False:
        yield Finding(
            "efa",
            f"{kind} has EFA, and this host shows no device in /sys/class/infiniband: hosts communicate over TCP.",
            "Use an AWS PyTorch image; a rehearsal or local mode has no EFA.",
        )
    elif devices and not any(name.startswith("libfabric.so") for each in folders for name in names_in(each)):
        yield Finding(
            "efa",
            f"{kind} has {devices} EFA device(s), and this image has no libfabric in /opt/amazon/efa: NCCL uses TCP.",
            "Use an AWS PyTorch image, or run AWS's EFA installer in your own.",
        )


def _many_gpus(machine: Machine) -> bool:
    return gpus(machine) > 1


def _on_efa(machine: Machine) -> bool:
    return efa_devices(machine) > 0 and len(machine.job.world_hosts) > 1


def _any(machine: Machine) -> bool:
    return True


def _without_smp(machine: Machine) -> bool:
    """Not with SMP v1, which sets ``NCCL_ALGO`` itself: ``sagemaker_training/mpi.py``."""
    return "mp_parameters" not in machine.job.hyperparameters.reserved


_HOST_MEMORY = "GPUs of one host exchange data through host memory"
_TCP = "hosts communicate over TCP, although this host has EFA"
_ERRORS_OFF = "a failed or lost rank leaves the others waiting in their collective"
# NVIDIA, "NCCL environment variables"; torch, "ProcessGroupNCCL environment variables" and "Distributed communication
# package"; aws/aws-ofi-nccl. NCCL_IB_DISABLE=1 and NCCL_PROTO=simple, which the containers set, do no harm: EFA is used
# through NCCL's network plugin.
# A value of a variable that hurts: on which machines, and what it does.
_RULES: Tuple[Tuple[str, str, Callable[[Machine], bool], str], ...] = (
    ("NCCL_P2P_DISABLE", "1", _many_gpus, _HOST_MEMORY),
    ("NCCL_P2P_LEVEL", "LOC", _many_gpus, _HOST_MEMORY),
    ("NCCL_SHM_DISABLE", "1", _many_gpus, "processes of one host exchange data over the network"),
    ("NCCL_NET", "Socket", _on_efa, _TCP),
    ("NCCL_NET_PLUGIN", "none", _on_efa, _TCP),
    ("FI_PROVIDER", "tcp*", _on_efa, _TCP),
    ("FI_PROVIDER", "sockets", _on_efa, _TCP),
    ("FI_EFA_USE_DEVICE_RDMA", "0", _on_efa, "GPUs do not write to the network card directly"),
    ("NCCL_ALGO", "?*", _without_smp, "NCCL does not choose the algorithm by the size of each message"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", _any, _ERRORS_OFF),
    ("NCCL_ASYNC_ERROR_HANDLING", "0", _any, _ERRORS_OFF),
    ("CUDA_LAUNCH_BLOCKING", "1", _any, "the GPU waits for each kernel; meant for debugging"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", _any, "each collective is checked on all ranks; meant for debugging"),
    ("NCCL_DEBUG", "TRACE", _any, "NCCL logs each call"),
)


def nccl_settings(machine: Machine) -> Iterator[Finding]:
    """Settings of NCCL, libfabric, CUDA and torch that slow a training down or hide a failure.

    Saves: hours of a slower training.
    """
    for variable, pattern, applies, effect in _RULES:
        value = machine.environ.get(variable, "")
        if fnmatch.fnmatch(value.lower(), pattern.lower()) and applies(machine):
            yield Finding(
                "nccl settings",
                f"{variable}={value}: {effect}.",
                f"Unset {variable}; look for it in the job's environment, the image and the script.",
            )


def smddp_collectives(machine: Machine) -> Iterator[Finding]:
    """SMDDP speeds up the collective that the strategy uses: under mpirun AllReduce (DDP), else AllGather (FSDP).

    ``SMDATAPARALLEL_OPTIMIZE_SDP=true``, set by the user, chooses AllGather under ``mpirun``. Source: AWS,
    "Introduction to the SageMaker AI distributed data parallelism library".

    Saves: the speed for which SMDDP was chosen.
    """
    job = machine.job
    is_switched = machine.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP", "").lower() in ("true", "1")
    is_torchrun = job.hyperparameters.enabled("sagemaker_torch_distributed_enabled")
    if job.in_container and job.asks_for_smddp and (is_switched or is_torchrun):
        why = "SMDATAPARALLEL_OPTIMIZE_SDP is set" if is_switched else "torchrun starts the processes"
        yield Finding(
            "smddp collectives",
            f"{why}: SMDDP speeds up AllGather (FSDP, DeepSpeed), and not DDP's AllReduce.",
            "For DDP leave that out of the job; for FSDP and DeepSpeed it is right.",
        )


CHECKS: Tuple[Check, ...] = (main_host, efa, nccl_settings, smddp_collectives)
