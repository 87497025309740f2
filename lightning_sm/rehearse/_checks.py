"""What is refused before anything starts, and in what the rehearsal of a request differs from SageMaker.

That includes which ways of separating hosts this machine allows, and which of them a request can use.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._plan import container_path, scripts_path, tools_path
from lightning_sm.rehearse._request import (
    HOMOGENEOUS_CLUSTER,
    Distribution,
    Isolation,
    NetworkLink,
    RehearsalRequest,
    Sdk,
)
from lightning_sm.rehearse._sdk import PROCESSES_PER_HOST, drivers_folder

__all__ = [
    "check_entry_point",
    "check_port",
    "check_software",
    "differences",
    "choose_isolation",
    "describe_isolation",
    "namespace_options",
    "probe_isolation",
    "probe_qdisc",
]

_MASTER_PORT = 7777
_ACCELERATED = ("ml.p", "ml.g", "ml.trn")


def check_software(request: RehearsalRequest) -> None:
    """Check that everything that this launcher runs is installed.

    Raises:
        RehearsalError: Something is missing; the message names it and the extra or package that contains it.
    """
    path = scripts_path(os.environ.get("PATH", os.defpath))
    if request.sdk is Sdk.V2:
        for module in ("sagemaker_training", "sagemaker_pytorch_container"):
            if importlib.util.find_spec(module) is None:
                raise _not_installed(f"SageMaker's training toolkit (module {module})")
    elif request.code is not None:
        drivers_folder()
    if request.distribution is Distribution.TORCH_DISTRIBUTED and shutil.which("torchrun", path=path) is None:
        raise RehearsalError("torchrun is not installed.", hint="It is a part of torch: pip install torch")
    if not request.distribution.uses_mpirun:
        return
    if importlib.util.find_spec("mpi4py") is None:
        raise _not_installed("mpi4py, through which the mpirun launchers start the program,")
    if importlib.util.find_spec("paramiko") is None:
        raise _not_installed("paramiko, with which the hosts connect to each other,")
    for command, package in (("mpirun", "openmpi-bin"), ("sshd", "openssh-server"), ("ssh-keygen", "openssh-client")):
        if shutil.which(command, path=path) is None:
            raise RehearsalError(f"{command} is not installed.", hint=f"On Debian and Ubuntu: apt install {package}")


def check_entry_point(request: RehearsalRequest) -> None:
    """Check that the launcher can start this kind of entry point.

    Raises:
        RehearsalError: It is a shell script, or a package, under a launcher that takes only ``.py``.
    """
    name = request.entry_point
    if name is None:
        return
    if name.startswith(("/", "-")) or ".." in Path(name).parts or " " in name:
        raise RehearsalError(
            f"The toolkit refuses the entry point {name!r}.",
            hint="Give a path relative to --source-dir, without blanks.",
        )
    if request.sdk is Sdk.V3 and not name.endswith((".py", ".sh")):
        raise RehearsalError(f"SDK v3 refuses the entry point {name!r}.", hint="It must end in .py or .sh.")
    if request.distribution is not Distribution.TORCH_DISTRIBUTED:
        return
    if not name.endswith(".py"):
        raise RehearsalError(
            f"torchrun cannot start {name!r}: torch_distributed takes only a Python file.",
            hint="Give a .py entry point, or use --distribution none for a shell script.",
        )
    if request.sdk is Sdk.V2 and request.code is not None and (request.code / "setup.py").exists():
        raise RehearsalError(
            f"{request.code / 'setup.py'} makes the source directory a package, which torch_distributed refuses.",
            hint="Move setup.py out of the source directory, or use pyproject.toml.",
        )


def check_port(host: str = "127.0.0.1", port: int = _MASTER_PORT) -> None:
    """Check that the master port of the toolkit's launchers is free; loopback hosts share ports with the machine.

    Raises:
        RehearsalError: Something listens there already.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RehearsalError(
                f"Port {port} is in use ({error.strerror}), and the toolkit's launchers always use it.",
                hint="End the other program (another rehearsal?), or use --isolation userns or netns.",
            ) from error


def _not_installed(what: str) -> RehearsalError:
    return RehearsalError(
        f"{what} is not installed for {sys.executable}.", hint="pip install 'lightning-sm[rehearse]' (needs gcc)"
    )


def differences(request: RehearsalRequest, isolation: Isolation) -> Tuple[str, ...]:
    """Return a sentence for each thing that works here and not on SageMaker, or the other way."""
    return (
        *_of_isolation(request, isolation),
        *(_of_v3(request) if request.sdk is Sdk.V3 else _of_v2(request)),
        *_of_launcher(request),
        *_of_channels(request),
    )


def _of_isolation(request: RehearsalRequest, isolation: Isolation) -> Iterator[str]:
    if isolation.is_namespaced:
        yield "Hosts have no route to the internet: downloads and a program's own pip install fail only here."
    else:
        yield (
            "Hosts share this machine's file system, /tmp, host name and ports; on SageMaker they share nothing. "
            "A file that one host writes outside its base directory is visible to the others only here."
        )
        yield "/opt/ml is moved by SAGEMAKER_BASE_DIR: a program that names /opt/ml literally fails only here."
        yield "Hosts are named 127.0.0.K; on SageMaker algo-K, which socket.gethostname() returns too."
        if request.channels:
            yield "Channels are links to your own folders: a program that writes into one changes your data."
    if isolation is Isolation.USERNS:
        yield "Outside /opt, /etc and /tmp the hosts see your own files, and what they write there stays."
    if request.limits.interrupt_after is not None:
        yield "The spot interruption comes without SageMaker's SIGTERM and 120 s (which never reach the program)."


def _of_v2(request: RehearsalRequest) -> Iterator[str]:
    types = sorted({group.instance_type for group in request.groups})
    cpu = [name for name in types if not name.startswith(_ACCELERATED)]
    if request.distribution is Distribution.TORCH_DISTRIBUTED:
        if cpu:
            yield f"SDK v2 refuses torch_distributed on {', '.join(cpu)}: only GPU and Trainium instances."
        if len(request.groups) > 1:
            yield "SDK v2 takes groups only with mpi and smdistributed; each group is a torchrun world of its own."
    if request.distribution in (Distribution.SMDISTRIBUTED, Distribution.PYTORCHDDP):
        yield f"SDK v2 refuses {request.distribution} for framework_version above 2.2.0, unless image_uri is given."
    if len(request.groups) > 1 and request.groups[0].name != HOMOGENEOUS_CLUSTER and request.local_mode_files:
        yield "Local mode has no instance groups."


def _of_v3(request: RehearsalRequest) -> Iterator[str]:
    for name, value in request.hyperparameters:
        if "." in name:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: shell variables have no dots."
        if "'" in value:
            yield f"SDK v3's driver ends the job at the hyperparameter {name!r}: its value has a single quote."
    for channel in request.channels:
        if "-" in channel.name or "." in channel.name:
            yield f"SDK v3's driver ends the job at the channel {channel.name!r}: its name is not a shell variable's."
    if request.distribution is Distribution.MPI and len(request.hosts) > 1:
        yield "SDK v3's MPI driver starts all its ranks on the first host (-np counts one host's processes)."
    if request.code is not None and (request.code / "requirements.txt").exists():
        yield "SDK v3 installs requirements.txt only when SourceCode(requirements=...) names it; it was not installed."


def _of_launcher(request: RehearsalRequest) -> Iterator[str]:
    has_count = request.hyperparameter(PROCESSES_PER_HOST) is not None
    if request.sdk is Sdk.V2 and request.distribution is not Distribution.MPI and has_count:
        yield f"Processes per host come from {PROCESSES_PER_HOST}; SageMaker counts the instance's GPUs, 1 on CPU."
    if request.distribution in (Distribution.SMDISTRIBUTED, Distribution.PYTORCHDDP):
        path = container_path(request, os.environ)
        if not any(os.access(os.path.join(folder, "smddprun"), os.X_OK) for folder in path.split(os.pathsep)):
            yield "There is no smddprun here, so ranks have only OMPI_* variables; images with SMDDP set RANK as well."
    if request.distribution.uses_mpirun:
        yield "Images for GPU on Amazon Linux 2023 have no mpi4py: add it to requirements.txt."


def _of_channels(request: RehearsalRequest) -> Iterator[str]:
    for channel in request.channels:
        settings = dict(channel.settings)
        if settings["TrainingInputMode"] == "FastFile":
            yield f"Channel {channel.name} is a plain folder here; FastFile's is read-only, and read on demand."
        if settings["S3DistributionType"] == "ShardedByS3Key":
            yield f"Every host has all of channel {channel.name} here; ShardedByS3Key gives each a share."


_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork")

_TITLES = {
    Isolation.NETNS: "netns (root: each host has its own network, host name, /opt/ml, /etc, /tmp, processes)",
    Isolation.USERNS: "userns (rootless namespaces: each host has its own network, host name, /opt/ml, /etc, /tmp)",
    Isolation.LOOPBACK: "loopback (no rights needed: hosts are 127.0.0.K and share this machine's files and processes)",
}

# What the supervisor must be allowed to do, tried in namespaces that end with the shell.
_TRIAL = (
    "ip link add stage type bridge && ip link add eth0 type veth peer name peer && ip link set peer master stage && "
    "mount -t tmpfs tmpfs {folder} && mkdir {folder}/up {folder}/work {folder}/image && "
    "mount -t overlay overlay -o lowerdir={lower},upperdir={folder}/up,workdir={folder}/work {folder}/image && "
    "mount -t proc proc /proc"
)


def namespace_options(isolation: Isolation) -> Tuple[str, ...]:
    """Return the options of ``unshare`` for the supervisor of the hosts; none for ``loopback``."""
    if not isolation.is_namespaced:
        return ()
    user = ("--user", "--map-root-user") if isolation is Isolation.USERNS else ()
    return (*user, *_NAMESPACES)


def describe_isolation(isolation: Isolation) -> str:
    """Return the words of a rehearsal's first line."""
    return _TITLES[isolation]


def probe_isolation(isolation: Isolation, folder: str = "/tmp") -> Optional[str]:
    """Try the isolation on this machine. Return why it cannot be used; ``None`` if it can. Leaves nothing behind."""
    if not isolation.is_namespaced:
        return None
    if not sys.platform.startswith("linux"):
        return f"namespaces need Linux, this is {sys.platform}"
    if isolation is Isolation.NETNS and os.geteuid() != 0:
        return "it needs root"
    for command, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(command, path=_path()) is None:
            return f"{command} is not installed (package {package})"
    # A user namespace may not mount an overlay over a directory with mounts in it, so it tries /etc only.
    script = _TRIAL.format(folder=folder, lower="/" if isolation is Isolation.NETNS else "/etc")
    return _try_script(isolation, script)


def probe_qdisc(isolation: Isolation, discipline: str) -> Optional[str]:
    """Try a queueing discipline of ``tc``, such as ``netem delay 1ms``. Return the error; ``None`` if there is none."""
    return _try_script(isolation, f"tc qdisc add dev lo root {discipline}")


def choose_isolation(request: RehearsalRequest) -> Isolation:
    """Return the isolation to use: the requested one, or the best that the request and this machine allow.

    Raises:
        RehearsalError: There is none; the message says of each why not. Or the network cannot be shaped as requested.
    """
    reasons: List[str] = []
    for isolation in Isolation if request.isolation is None else (request.isolation,):
        reason = _unsuitable(request, isolation) or probe_isolation(isolation)
        if reason is None:
            _check_link(request.link, isolation)
            return isolation
        reasons.append(f"{isolation}: {reason}")
    job = f"--distribution {request.distribution} with SDK {request.sdk}"
    hint = "Run it as root, or on a Linux that allows unprivileged user namespaces."
    if request.distribution.uses_mpirun:
        hint = "The mpirun launchers need --isolation netns, and that needs root (in Docker: --privileged)."
    raise RehearsalError(f"{job} cannot be rehearsed here. " + "; ".join(reasons) + ".", hint=hint)


def _unsuitable(request: RehearsalRequest, isolation: Isolation) -> Optional[str]:
    """Why this request cannot run with ``isolation`` on any machine; ``None`` if it can."""
    if isolation is Isolation.NETNS:
        return None
    if request.distribution.uses_mpirun and isolation is Isolation.USERNS:
        return f"{request.distribution} logs in to each host by ssh, and sshd needs real users"
    if isolation is Isolation.USERNS:
        return None
    if request.distribution.uses_mpirun:
        return f"{request.distribution} logs in to each host by ssh on port 22, which hosts of one network cannot share"
    reads_base_dir = any("SAGEMAKER_BASE_DIR" in word for word in request.command)
    if request.command[-1:] != ("train",) and not reads_base_dir:
        return "this entry point uses /opt/ml by its absolute name"
    if request.link.is_shaped or request.limits.names_after:
        return "hosts without a network of their own cannot have --bandwidth, --latency or --names-after"
    if request.distribution is Distribution.TORCH_DISTRIBUTED and len(request.groups) > 1:
        return "each group is a world of its own at port 7777, which hosts of one network cannot share"
    return None


def _check_link(link: NetworkLink, isolation: Isolation) -> None:
    if link.is_shaped and shutil.which("tc", path=_path()) is None:
        raise RehearsalError(
            "--latency and --bandwidth need tc, which is not installed.",
            hint="On Debian and Ubuntu: apt install iproute2",
        )
    wanted = (
        (link.latency, "--latency", "netem", "delay 1ms"),
        (link.bits_per_second, "--bandwidth", "tbf", "rate 1gbit burst 65536 latency 1ms"),
    )
    for value, option, discipline, arguments in wanted:
        error = None if value is None else probe_qdisc(isolation, f"{discipline} {arguments}")
        if error is not None:
            raise RehearsalError(
                f"{option} is not available: this kernel has no {discipline} ({error}).",
                hint=f"Load its module (modprobe sch_{discipline}; on Ubuntu in the package "
                f"linux-modules-extra-$(uname -r)), or leave {option} out.",
            )


def _try_script(isolation: Isolation, script: str) -> Optional[str]:
    """Why the script fails in new namespaces, or ``None`` if it does not."""
    command = ["unshare", *namespace_options(isolation), "--kill-child", "sh", "-c", script]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
            env={**os.environ, "PATH": _path(), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"unshare ended with {done.returncode}")


def _path() -> str:
    return tools_path(os.environ.get("PATH", os.defpath))
