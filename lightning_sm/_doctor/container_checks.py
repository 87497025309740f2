"""Checks of the container: what its launcher and entry point need, Debugger, MLflow, compiled extensions, Trainium."""

import os
import time
from typing import Dict, Iterator, Tuple

from lightning_sm._distributed.build_locks import build_locks, extensions_folder
from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import config_file, find_package, find_program, gpus, names_in, of_this_host

__all__ = ["CHECKS"]

_MPI_SWITCHES = (
    "sagemaker_mpi_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
)
# Where AWS's EFA installer puts Open MPI: aws/deep-learning-containers, docker/pytorch.
_MPIRUN_FOLDERS = ("/opt/amazon/openmpi/bin", "/opt/amazon/openmpi5/bin", "/usr/local/bin", "/usr/bin")
# Under mpirun the training toolkit preloads its gethostname.*.so (sagemaker_training/mpi.py).
_HOSTNAME_LIBRARY = "gethostname"
_STALE_SECONDS = 3600.0


def _mpi(machine: Machine) -> Iterator[Finding]:
    """What the launchers over mpirun need: mpi4py, mpirun and sshd (errors).

    Source: ``sagemaker_training/mpi.py``, ``sagemaker_training/smdataparallel.py``. AWS's GPU images on Amazon Linux
    2023 have no mpi4py (``aws/deep-learning-containers``, ``docker/pytorch/*/cuda/pyproject.toml``).
    """
    job = machine.job
    switch = next((name for name in _MPI_SWITCHES if job.hyperparameters.enabled(name)), None)
    if switch is None:
        return
    if machine.environ.get("OMPI_COMM_WORLD_RANK"):
        yield Finding("mpirun", Status.OK, "mpirun has started this process")
        return
    package = find_package(machine, "mpi4py")
    if package is None:
        text = f"mpi4py is not installed, and the launcher of this job ({switch}) starts python -m mpi4py."
        hint = "Put mpi4py into requirements.txt, or use distribution={'torch_distributed': {'enabled': True}}."
        yield Finding("mpirun", Status.ERROR, text, hint)
    needed: Dict[str, Tuple[str, ...]] = {"mpirun": _MPIRUN_FOLDERS}
    if len(job.hosts) > 1:
        needed["sshd"] = ("/usr/sbin",)
    missing = [name for name, folders in needed.items() if find_program(machine, name, *folders) is None]
    for name in missing:
        why = "starts the processes" if name == "mpirun" else f"connects the {len(job.hosts)} hosts"
        text = f"{name} is not in this image; it {why} under this job's launcher ({switch})."
        hint = (
            "Use an AWS PyTorch image, or distribution={'torch_distributed': {'enabled': True}}, which needs neither."
        )
        yield Finding("mpirun", Status.ERROR, text, hint)
    if package is not None and not missing:
        yield Finding("mpirun", Status.OK, f"mpi4py {package.version}, {', '.join(needed)}")


def _entry_point(machine: Machine) -> Iterator[Finding]:
    """What gives the host its name: gcc and jq; a preloaded library without its file is an error.

    ``start_with_right_hostname.sh`` of AWS's images reads ``resourceconfig.json`` with jq and compiles a library with
    gcc, which makes ``gethostname`` return ``algo-N`` (``aws/deep-learning-containers``, ``scripts/docker/pytorch``).
    The training toolkit's own (``sagemaker_training/c/gethostname.c``) does not check that it could open that file.
    """
    preloaded = machine.environ.get("LD_PRELOAD", "")
    config = machine.path("/opt/ml/input/config/resourceconfig.json")
    if _HOSTNAME_LIBRARY in os.path.basename(preloaded) and not os.path.exists(config):
        text = (
            f"LD_PRELOAD names {preloaded}, which reads /opt/ml/input/config/resourceconfig.json, and that is missing."
        )
        hint = "Unset LD_PRELOAD: with that library socket.gethostname() ends the process."
        yield Finding("host name", Status.ERROR, text, hint)
    script = find_program(machine, "start_with_right_hostname.sh", "/usr/local/bin")
    if not machine.job.in_container or script is None:
        return
    missing = [name for name in ("gcc", "jq") if find_program(machine, name, "/usr/bin", "/usr/local/bin") is None]
    if missing:
        text = f"the entry point {script.name} needs {' and '.join(missing)}, which this image does not have."
        hint = "Install it in the image; otherwise hosts have Docker's names and mpirun cannot find them."
        yield Finding("host name", Status.WARNING, text, hint)


def _debugger(machine: Machine) -> Iterator[Finding]:
    """SageMaker Debugger's hooks; an error where a distributed training has checkpoints.

    ``debughookconfig.json`` is written by the service for a job with ``DebugHookConfig``, which SDK v2 sends by
    default. ``USE_SMDEBUG=0``, set by the user, turns the hooks off (``sagemaker_training/process.py``). The library's
    last release on the package index is of 2021; its hooks refuse distributed trainings with checkpoints (AWS,
    "Considerations for Amazon SageMaker Debugger") and can end those under ``smdistributed``
    (``awslabs/sagemaker-debugger`` issue 609).
    """
    job = machine.job
    if not job.in_container or not os.path.exists(config_file(machine, "debughookconfig.json")):
        return
    package = find_package(machine, "smdebug") if machine.is_here else None
    if machine.environ.get("USE_SMDEBUG") == "0" or (machine.is_here and package is None):
        why = "USE_SMDEBUG=0" if machine.environ.get("USE_SMDEBUG") == "0" else "smdebug is not installed"
        yield Finding("Debugger", Status.OK, f"the job has hooks, and they are off: {why}")
        return
    hint = "Pass debugger_hook_config=False to the estimator, or environment={'USE_SMDEBUG': '0'}."
    name = f"smdebug {package.version}" if package else "smdebug, if the image has it,"
    topology = machine.topology
    distributed = len(job.world_hosts) > 1 or (topology is not None and (topology.world_size or 1) > 1)
    if distributed and os.path.exists(config_file(machine, "checkpointconfig.json")) and package is not None:
        text = f"{name} hooks into this distributed training, and refuses one with checkpoints."
        yield Finding("Debugger", Status.ERROR, text, hint)
        return
    text = f"{name} hooks into every module and step of this training; it is not maintained for current torch releases."
    yield Finding("Debugger", Status.WARNING, text, hint)


def _extension_lock(machine: Machine) -> Iterator[Finding]:
    """Locks of builds that were killed, for which torch waits forever without a word (errors).

    ``TORCH_EXTENSIONS_DIR``, set by the user, is where torch compiles extensions of DeepSpeed and others; by default
    ``~/.cache/torch_extensions``. Source: ``pytorch/pytorch`` issue 189245.
    """
    top = machine.path(extensions_folder(machine.environ))
    for lock in build_locks(top):
        try:
            age = time.time() - lock.stat().st_mtime
        except OSError:
            continue
        text = f"{lock} is {age / 60:.0f} minutes old: a build that holds it makes every import of it wait."
        status = Status.ERROR if age > _STALE_SECONDS else Status.WARNING
        yield Finding("torch_extensions", status, text, "Delete the file, unless a build runs at this moment.")


def _deepspeed(machine: Machine) -> Iterator[Finding]:
    """A CUDA compiler, where DeepSpeed compiles its operators at first use.

    ``CUDA_HOME``, set by images or the user, is where the compiler is; by default ``/usr/local/cuda``. Source:
    deepspeed.ai, "Installation Details".
    """
    package = find_package(machine, "deepspeed")
    if package is None or not gpus(machine):
        return
    home = machine.environ.get("CUDA_HOME") or "/usr/local/cuda"
    if find_program(machine, "nvcc", f"{home}/bin", "/usr/local/cuda/bin") is None:
        text = (
            f"deepspeed {package.version} is installed and nvcc is not: operators that it compiles at first use fail."
        )
        hint = "Use an image with the CUDA toolkit, or optimizers that need no compiled operator."
        yield Finding("deepspeed", Status.WARNING, text, hint)
    else:
        yield Finding("deepspeed", Status.OK, f"{package.version}, with nvcc")


def _mlflow(machine: Machine) -> Iterator[Finding]:
    """The plugin with which MLflow reads an ARN (error if missing), and the permission that it takes.

    ``MLFLOW_TRACKING_URI`` is set by the user, or by the service for a job with ``MlflowConfig``. Source:
    ``aws/sagemaker-mlflow``; AWS, "Actions, resources, and condition keys for Amazon SageMaker with MLflow".
    """
    given = machine.environ.get("MLFLOW_TRACKING_URI") or machine.job.hyperparameters.get("sagemaker.mlflow_arn", "")
    if not str(given).startswith("arn:"):
        return
    plugin, mlflow = find_package(machine, "sagemaker-mlflow"), find_package(machine, "mlflow")
    action = "sagemaker:CallMlflowAppApi" if ":mlflow-app/" in str(given) else "sagemaker-mlflow:*"
    if plugin is None:
        text = "the tracking URI of MLflow is an ARN, and sagemaker-mlflow, which reads ARNs, is not installed."
        hint = f"Put mlflow and sagemaker-mlflow into requirements.txt; the job's role needs {action} on that ARN."
        yield Finding("MLflow", Status.ERROR, text, hint)
    else:
        versions = f"sagemaker-mlflow {plugin.version}, mlflow {mlflow.version if mlflow else 'not installed'}"
        yield Finding("MLflow", Status.OK, f"{versions}; the job's role needs {action}")


def _toolkit(machine: Machine) -> Iterator[Finding]:
    """The version of the training toolkit."""
    if not machine.job.in_container:
        return
    toolkit = find_package(machine, "sagemaker-training")
    if toolkit is not None:
        yield Finding("training toolkit", Status.OK, f"sagemaker-training {toolkit.version}")


def _trainium(machine: Machine) -> Iterator[Finding]:
    """Neuron hardware, for which AWS has packages of its own."""
    job = machine.job
    kind = job.current_instance_type or ""
    devices = any(name.startswith("neuron") for name in names_in(machine.path("/dev"))) if machine.is_here else False
    if not (kind.startswith(("ml.trn", "ml.inf")) or job.num_neurons or devices):
        return
    package = find_package(machine, "torch-neuronx") if machine.is_here else None
    seen = f"torch-neuronx {package.version}" if package else "torch-neuronx not seen"
    text = f"{kind or 'this host'} has Neuron cores ({seen}), which lightning-sm does not use."
    hint = "Use AWS's neuronx_distributed.lightning for Trn1, TorchNeuron for Trn2; or a GPU instance."
    yield Finding("Trainium", Status.WARNING, text, hint)


CHECKS: Tuple[Check, ...] = (
    of_this_host(_toolkit),
    of_this_host(_mpi),
    of_this_host(_entry_point),
    _debugger,
    of_this_host(_extension_lock),
    of_this_host(_deepspeed),
    of_this_host(_mlflow),
    _trainium,
)
