"""``TopologySummary``: the job, its hosts, its world, the backend and the versions, as lines for the log."""

import platform
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, Optional, Sequence, Tuple

from lightning_sm._lightning import NAMESPACES
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm._version import __version__

__all__ = ["TopologySummary", "installed_software", "log_once", "resolve_hosts"]

_HOSTS_PER_LINE = 8
_RESOLVERS = 32
_NOT_RESOLVED = "not resolved yet"

_is_logged = False


@dataclass(frozen=True)
class TopologySummary:
    """What a job runs on, as rank zero sees it before the processes rendezvous.

    ``str(summary)`` is one line for each fact; each begins with ``topology:`` and the name of the fact.

    Args:
        launcher: What started this process.
        evidence: The variables and files by which launcher, ranks and sizes were recognised.
        hosts: The hosts that train together, each with its address, or ``None`` if it did not resolve in time.
        world_size: Processes in the world.
        local_world_size: Processes on this host; ``None`` if unknown.
        backend: The backend of the process group; ``None`` in a world of one process.
        backend_reason: Why that backend.
        main: Address and port of global rank 0; ``None`` in a world of one process.
        main_source: The variables or files that they were read from.
        job_name: The name of the training job; ``None`` outside a container.
        instances: Instance types, each with its number of hosts.
        num_gpus: GPUs of this host; ``None`` if unknown.
        software: Names of packages, each with its version.

    Example::

        >>> print(TopologySummary("torchrun", ("RANK",), (("algo-1", "10.0.0.1"),), 8, 8, job_name="bert"))
        topology: job: bert
        topology: launcher: torchrun, by RANK
        topology: world: 8 processes, 8 on this host, 1 host
        topology: hosts: algo-1=10.0.0.1
    """

    launcher: str
    evidence: Tuple[str, ...] = ()
    hosts: Tuple[Tuple[str, Optional[str]], ...] = ()
    world_size: int = 1
    local_world_size: Optional[int] = None
    backend: Optional[str] = None
    backend_reason: Optional[str] = None
    main: Optional[str] = None
    main_source: Optional[str] = None
    job_name: Optional[str] = None
    instances: Tuple[Tuple[str, int], ...] = ()
    num_gpus: Optional[int] = None
    software: Tuple[Tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        job: TrainingJob,
        topology: Topology,
        *,
        world_size: int,
        local_world_size: Optional[int] = None,
        backend: Optional[str] = None,
        backend_reason: Optional[str] = None,
        main: Optional[str] = None,
        timeout: float = 2.0,
    ) -> "TopologySummary":
        """Build the summary.

        Args:
            job: The job.
            topology: The launcher's world.
            world_size: Processes in the world, which Lightning may have counted.
            local_world_size: Processes on this host; ``None`` takes the launcher's number.
            backend: The backend of the process group.
            backend_reason: Why that backend.
            main: Address and port of global rank 0.
            timeout: How long to wait for the addresses of the hosts at most, in seconds.
        """
        names = job.world_hosts or tuple(filter(None, [topology.main_address]))
        sources = topology.sources
        ranks = ("global_rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
        main_sources = [sources[name] for name in ("main_address", "main_port") if name in sources]
        return cls(
            str(topology.launcher),
            _unique(sources[name] for name in ranks if name in sources),
            tuple(resolve_hosts(names, timeout).items()),
            world_size,
            topology.local_world_size if local_world_size is None else local_world_size,
            backend,
            backend_reason,
            main,
            ", ".join(_unique(main_sources)) or None,
            job.name,
            _instances(job, names),
            job.num_gpus,
            tuple(installed_software().items()),
        )

    def __str__(self) -> str:
        return "\n".join(f"topology: {name}: {value}" for name, value in self._facts())

    def _facts(self) -> Iterator[Tuple[str, str]]:
        if self.job_name is not None:
            yield "job", self.job_name
        yield "launcher", f"{self.launcher}, by {', '.join(self.evidence)}" if self.evidence else self.launcher
        local = "" if self.local_world_size is None else f"{self.local_world_size} on this host, "
        yield "world", f"{_count(self.world_size, 'process')}, {local}{_count(len(self.hosts) or 1, 'host')}"
        for start in range(0, len(self.hosts), _HOSTS_PER_LINE):
            some = self.hosts[start : start + _HOSTS_PER_LINE]
            yield "hosts", ", ".join(f"{name}={address or _NOT_RESOLVED}" for name, address in some)
        if self.main is not None:
            yield "master", self.main if self.main_source is None else f"{self.main} (by {self.main_source})"
        if self.backend is not None:
            yield "backend", f"{self.backend}, because {self.backend_reason}"
        if self.instances:
            gpus = "" if self.num_gpus is None else f" ({_count(self.num_gpus, 'GPU')} on this host)"
            yield "instances", ", ".join(f"{count} x {kind}" for kind, count in self.instances) + gpus
        if self.software:
            yield "versions", ", ".join(f"{name} {version}" for name, version in self.software)


def log_once(build: Callable[[], TopologySummary]) -> None:
    """Log a summary in one write, once in this process. An error in building it is logged and ends nothing.

    Args:
        build: Returns the summary.
    """
    global _is_logged
    if _is_logged:
        return
    _is_logged = True
    try:
        log.info("%s", build())
    except Exception as error:  # a line less must not end the training
        log.warning("The topology is not shown: %s: %s", type(error).__name__, error)


def resolve_hosts(names: Sequence[str], timeout: float = 2.0) -> Dict[str, Optional[str]]:
    """Resolve host names at the same time, and return each with its first address.

    A name that has not resolved within ``timeout`` seconds, for all names together, has ``None``: SageMaker starts
    hosts one by one.

    >>> resolve_hosts(["127.0.0.1", "no.such.host.invalid"])["127.0.0.1"]
    '127.0.0.1'
    """
    found: Dict[str, Optional[str]] = {}
    waiting = list(dict.fromkeys(names))[::-1]

    def resolve() -> None:
        while waiting:
            try:
                name = waiting.pop()
            except IndexError:
                return
            try:
                found[name] = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
            except (OSError, UnicodeError):
                found[name] = None

    deadline = time.monotonic() + timeout
    # Not a pool of concurrent.futures, whose threads the interpreter would wait for at its exit.
    threads = [threading.Thread(target=resolve, daemon=True) for _ in range(min(_RESOLVERS, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: found.get(name) for name in names}


def installed_software() -> Dict[str, str]:
    """Return the versions of this package, the Lightning and torch that are loaded, CUDA, NCCL and Python."""
    found = {"lightning_sm": __version__}
    for namespace in NAMESPACES:
        module = sys.modules.get(namespace.name.partition(".")[0])
        if namespace.is_loaded and module is not None:
            found[namespace.name] = str(getattr(module, "__version__", "unknown"))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        cuda = getattr(torch.version, "cuda", None)
        if cuda is not None:
            found.update(CUDA=str(cuda), NCCL=_nccl_version(torch))
    return {**found, "Python": platform.python_version()}


def _nccl_version(torch: object) -> str:
    try:
        version = torch.cuda.nccl.version()  # type: ignore[attr-defined]
    except Exception:  # torch built without NCCL
        return "unknown"
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _instances(job: TrainingJob, names: Sequence[str]) -> Tuple[Tuple[str, int], ...]:
    counts: Dict[str, int] = {}
    for group in job.instance_groups:
        members = sum(host in names for host in group.hosts)
        if members:
            kind = group.instance_type or "unknown type"
            counts[kind] = counts.get(kind, 0) + members
    if not counts and job.current_instance_type is not None:
        counts[job.current_instance_type] = len(names) or 1
    return tuple(counts.items())


def _unique(values: Iterable[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
