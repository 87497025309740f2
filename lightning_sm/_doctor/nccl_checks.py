"""Checks of the network between GPUs: EFA, settings of NCCL and libfabric, the driver's version."""

import fnmatch
import re
from typing import Callable, Iterator, Mapping, NamedTuple, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import (
    efa_devices,
    gpus,
    is_real_instance,
    names_in,
    of_this_host,
    packages,
    read_text,
    torch_build,
    version,
)

__all__ = ["CHECKS"]

# The types for which the training toolkit sets FI_PROVIDER: SM_EFA_NCCL_INSTANCES in sagemaker_training/__init__.py.
_TOOLKIT_EFA = (
    *("ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge"),
    *("ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.trn1.32xlarge", "ml.p6e-gb200.36xlarge"),
)
# GPU types with EFA on EC2: eksctl-io/eksctl, pkg/utils/instance/instance_types.go (EFASupported).
_EC2_EFA = (
    *(
        f"ml.{family}.{size}xlarge"
        for family in ("g4dn", "g5", "g6", "g6e", "g7", "g7e")
        for size in (8, 12, 16, 24, 48)
    ),
    *("ml.p3dn.*", "ml.p4d.*", "ml.p4de.*", "ml.p5.*", "ml.p5e.*", "ml.p5en.*", "ml.p6*", "ml.trn*"),
)
# The driver that each major version of CUDA needs: NVIDIA, "CUDA Compatibility", minor version compatibility.
_DRIVERS: Mapping[int, int] = {11: 450, 12: 525, 13: 580}


def _efa(machine: Machine) -> Iterator[Finding]:
    """EFA devices, ``FI_PROVIDER`` and libfabric against the instance type.

    ``FI_PROVIDER`` is set to ``efa`` by the training toolkit: under ``torch_distributed`` for the types that it knows,
    under ``smdistributed`` and ``pytorchddp`` on every type. Elsewhere NCCL's plugin fails with "Only EFA provider is
    supported" (``aws/deep-learning-containers`` issue 2675).
    """
    kind, provider = machine.job.current_instance_type, machine.environ.get("FI_PROVIDER")
    if not machine.job.in_container or kind is None or not kind.startswith("ml."):
        return
    devices, has_efa = efa_devices(machine), any(fnmatch.fnmatch(kind, each) for each in _EC2_EFA)
    several = len(machine.job.world_hosts) > 1
    if provider == "efa" and not has_efa and not devices:
        if not several or not kind.startswith(("ml.g", "ml.p")):
            why = "gloo, which CPUs use," if several else "one host"
            yield Finding("EFA", Status.OK, f"FI_PROVIDER=efa, and {kind} has no EFA; {why} needs none")
            return
        text = f"FI_PROVIDER=efa, and {kind} has no EFA: NCCL can fail with 'Only EFA provider is supported'."
        hint = "Use distribution={'torch_distributed': {'enabled': True}}, which sets it for types with EFA only."
        yield Finding("EFA", Status.WARNING, text, hint)
    elif kind in _TOOLKIT_EFA and not devices and several:
        text = f"{kind} has EFA, and this host shows no device in /sys/class/infiniband: hosts communicate over TCP."
        hint = "In SageMaker use an AWS PyTorch image; a rehearsal or local mode has no EFA."
        status = Status.ERROR if is_real_instance(machine) and provider == "efa" else Status.WARNING
        yield Finding("EFA", status, text, hint)
    elif devices and several and provider is None and kind not in _TOOLKIT_EFA:
        text = f"{kind} has {devices} EFA device(s), and the training toolkit does not set FI_PROVIDER for this type."
        yield Finding("EFA", Status.WARNING, text, "Pass environment={'FI_PROVIDER': 'efa'} to the estimator.")
    elif devices and several and not _has_plugin(machine):
        text = f"{kind} has {devices} EFA device(s), and this image has no libfabric in /opt/amazon/efa: NCCL uses TCP."
        yield Finding("EFA", Status.WARNING, text, "Use an AWS PyTorch image, or run AWS's EFA installer in your own.")
    elif devices:
        yield Finding("EFA", Status.OK, f"{devices} device(s), FI_PROVIDER={provider or '(not set)'}")
    else:
        needed = "one host needs none" if not several else f"none on {kind}"
        yield Finding("EFA", Status.OK, f"no EFA device; {needed}")


def _has_plugin(machine: Machine) -> bool:
    """Whether libfabric is where AWS's EFA installer puts it."""
    folders = (machine.path(f"/opt/amazon/efa/{each}") for each in ("lib", "lib64"))
    return any(name.startswith("libfabric.so") for folder in folders for name in names_in(folder))


class _Rule(NamedTuple):
    """A value of a variable that hurts: on which machines, what it does, and what to do."""

    variable: str
    value: str
    applies: Callable[[Machine], bool]
    effect: str
    hint: str = ""


def _many_gpus(machine: Machine) -> bool:
    return gpus(machine) > 1


def _on_efa(machine: Machine) -> bool:
    return efa_devices(machine) > 0 and len(machine.job.world_hosts) > 1


def _any(machine: Machine) -> bool:
    return True


_ERRORS_OFF = "a failed or lost rank leaves the others waiting in their collective"
# NVIDIA, "NCCL environment variables"; torch, "ProcessGroupNCCL environment variables" and "Distributed communication
# package"; aws/aws-ofi-nccl. NCCL_IB_DISABLE=1 and NCCL_PROTO=simple, which the containers set, do no harm: EFA is used
# through NCCL's network plugin.
_RULES = (
    _Rule("NCCL_P2P_DISABLE", "1", _many_gpus, "GPUs of one host exchange data through host memory"),
    _Rule("NCCL_P2P_LEVEL", "LOC", _many_gpus, "GPUs of one host exchange data through host memory"),
    _Rule("NCCL_SHM_DISABLE", "1", _many_gpus, "processes of one host exchange data over the network"),
    _Rule("NCCL_NET", "Socket", _on_efa, "hosts communicate over TCP, although this host has EFA"),
    _Rule("NCCL_NET_PLUGIN", "none", _on_efa, "hosts communicate over TCP, although this host has EFA"),
    _Rule("FI_PROVIDER", "tcp*", _on_efa, "hosts communicate over TCP, although this host has EFA", "Set it to efa."),
    _Rule(
        "FI_PROVIDER", "sockets", _on_efa, "hosts communicate over TCP, although this host has EFA", "Set it to efa."
    ),
    _Rule("FI_EFA_USE_DEVICE_RDMA", "0", _on_efa, "GPUs do not write to the network card directly", "Set it to 1."),
    _Rule("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", _any, _ERRORS_OFF),
    _Rule("NCCL_ASYNC_ERROR_HANDLING", "0", _any, _ERRORS_OFF),
    _Rule("CUDA_LAUNCH_BLOCKING", "1", _any, "the GPU waits for each kernel; meant for debugging"),
    _Rule("TORCH_DISTRIBUTED_DEBUG", "DETAIL", _any, "each collective is checked on all ranks; meant for debugging"),
    _Rule("NCCL_DEBUG", "TRACE", _any, "NCCL logs each call", "Set it to WARN."),
)


def _settings(machine: Machine) -> Iterator[Finding]:
    """Settings of NCCL, libfabric, CUDA and torch that slow a training down or hide a failure."""
    hurt = False
    for rule in _RULES:
        value = machine.environ.get(rule.variable)
        if value is not None and fnmatch.fnmatch(value.lower(), rule.value.lower()) and rule.applies(machine):
            hurt = True
            hint = rule.hint or f"Unset {rule.variable}; look for it in the estimator's environment, image and script."
            yield Finding("NCCL settings", Status.WARNING, f"{rule.variable}={value}: {rule.effect}.", hint)
    # SMP v1 sets ring itself for torch 2: sagemaker_training/mpi.py.
    algorithm = machine.environ.get("NCCL_ALGO")
    if (
        algorithm
        and "mp_parameters" not in machine.job.hyperparameters
        and not machine.environ.get("SM_HP_MP_PARAMETERS")
    ):
        hurt = True
        text = f"NCCL_ALGO={algorithm} takes the choice of the algorithm from NCCL, for every size of message."
        yield Finding("NCCL settings", Status.WARNING, text, "Unset NCCL_ALGO.")
    found = sorted(name for name in machine.environ if name.startswith(("NCCL_", "TORCH_NCCL_", "FI_")))
    if found and not hurt:
        named = ", ".join(f"{name}={machine.environ[name]}" for name in found)
        logs = "; NCCL_DEBUG=INFO writes hundreds of lines" if machine.environ.get("NCCL_DEBUG") == "INFO" else ""
        yield Finding("NCCL settings", Status.OK, f"{named}{logs}")


def _interface(machine: Machine) -> Iterator[Finding]:
    """``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME`` name interfaces of this host; else an error.

    NCCL's is a list of prefixes, of exact names behind ``=``, or of excluded ones behind ``^``. The containers set it
    to ``network_interface_name`` of ``resourceconfig.json``.
    """
    there = names_in(machine.path("/sys/class/net"))
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        given = machine.environ.get(variable, "")
        if not given or given.startswith("^") or not there:
            continue
        exact = given.startswith("=") or variable.startswith("GLOO")
        wanted = [name for name in given.lstrip("=").split(",") if name]
        if not any(name == each if exact else name.startswith(each) for each in wanted for name in there):
            text = f"{variable}={given}, and this host has {', '.join(there)}."
            hint = f"Unset {variable}, or name one of these: no process group can be initialized."
            yield Finding("network interface", Status.ERROR, text, hint)


def _driver(machine: Machine) -> Iterator[Finding]:
    """The GPU driver against the CUDA of torch and of NCCL (error if it is too old)."""
    text = read_text(machine.path("/proc/driver/nvidia/version")) or ""
    # "NVIDIA UNIX x86_64 Kernel Module  535.183.01  …", "NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  …"
    found = re.search(r"Kernel Module.*?\s(\d{3}\.\d+(?:\.\d+)?)\b", text)
    if found is None:
        return
    driver, build = found.group(1), torch_build(machine)
    nccl = {each.name: each.version for each in packages(machine) if re.fullmatch(r"nvidia-nccl-cu\d+", each.name)}
    named = ", ".join(f"{name} {each}" for name, each in nccl.items())
    parts = [("torch", build.cuda if build else None), *((name, name.rpartition("cu")[2]) for name in nccl)]
    too_new = False
    for name, cuda in parts:
        needs = _DRIVERS.get(version(cuda)[0]) if version(cuda) else None
        if needs is not None and version(driver)[0] < needs:
            too_new = True
            text = f"{name} is built for CUDA {cuda}, which needs driver {needs}; this host has {driver}."
            hint = "Use an image with an older CUDA (a job cannot change the driver), or without another NCCL."
            compat = _has_compat(machine)
            if compat:
                text = f"{text} The image brings CUDA's compatibility libraries."
            yield Finding("GPU driver", Status.WARNING if compat else Status.ERROR, text, hint)
    if len(nccl) > 1:
        text = f"several NCCL packages are installed: {named}; only one of them fits torch."
        yield Finding("GPU driver", Status.WARNING, text, "Look in requirements.txt for what requires the other one.")
    elif not too_new:
        yield Finding("GPU driver", Status.OK, ", ".join(each for each in (driver, named) if each))


def _has_compat(machine: Machine) -> bool:
    """Whether the image has CUDA's forward compatibility libraries: ``/usr/local/cuda/compat``."""
    return any(name.startswith("libcuda.so") for name in names_in(machine.path("/usr/local/cuda/compat")))


CHECKS: Tuple[Check, ...] = tuple(of_this_host(check) for check in (_driver, _efa, _interface, _settings))
