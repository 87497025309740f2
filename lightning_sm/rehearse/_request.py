"""The request of one rehearsal: a CreateTrainingJob request, resolved to this machine, as a frozen value."""

import dataclasses
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

__all__ = [
    "DEFAULT_CHECKPOINT_PATH",
    "HOMOGENEOUS_CLUSTER",
    "TOOLKIT_COMMAND",
    "Distribution",
    "HostGroup",
    "InputChannel",
    "Isolation",
    "Limits",
    "NetworkLink",
    "RehearsalRequest",
    "Sdk",
    "TextEnum",
]

#: ``CheckpointConfig.LocalPath`` of a request that does not set it.
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

#: The group name that SageMaker writes when a request has no instance groups.
HOMOGENEOUS_CLUSTER = "homogeneousCluster"

#: The command of the training toolkit's images.
TOOLKIT_COMMAND = ("train",)


class TextEnum(str, Enum):
    """An enumeration whose members are, and print as, their values on every Python."""

    def __str__(self) -> str:
        return str(self.value)


class Distribution(TextEnum):
    """The launcher of a job: the keys of the SDK's ``distribution`` argument.

    Example::

        >>> Distribution("mpi").uses_mpirun
        True
    """

    NONE = "none"
    TORCH_DISTRIBUTED = "torch_distributed"
    PYTORCHDDP = "pytorchddp"
    SMDISTRIBUTED = "smdistributed"
    MPI = "mpi"

    @property
    def uses_mpirun(self) -> bool:
        """Whether the hosts reach each other by ssh."""
        return self in (Distribution.PYTORCHDDP, Distribution.SMDISTRIBUTED, Distribution.MPI)


class Sdk(TextEnum):
    """The SageMaker Python SDK whose requests are rehearsed: ``v2`` (estimators) or ``v3`` (``ModelTrainer``).

    Example::

        >>> str(Sdk("v3"))
        'v3'
    """

    V2 = "v2"
    V3 = "v3"


class Isolation(TextEnum):
    """How hosts are separated on one machine, from the most to the least like SageMaker.

    ``netns`` and ``userns`` give each host Linux namespaces of its own, with and without root; ``loopback`` hosts are
    the addresses ``127.0.0.K`` and share this machine's files and processes.

    Example::

        >>> [isolation.value for isolation in Isolation if isolation.is_namespaced]
        ['netns', 'userns']
    """

    NETNS = "netns"
    USERNS = "userns"
    LOOPBACK = "loopback"

    @property
    def is_namespaced(self) -> bool:
        """Whether each host has a network and a root directory of its own."""
        return self is not Isolation.LOOPBACK


@dataclass(frozen=True)
class HostGroup:
    """An instance group with its hosts. The first host in the given order is the main one, as in the toolkit.

    Args:
        name: The group's name.
        instance_type: What the configuration files say, such as ``ml.m5.xlarge``.
        hosts: Host names in order; they are not sorted.

    Example::

        >>> HostGroup("workers", "ml.g5.xlarge", ("algo-3", "algo-2")).hosts[0]
        'algo-3'
    """

    name: str
    instance_type: str
    hosts: Tuple[str, ...]


@dataclass(frozen=True)
class InputChannel:
    """One input channel.

    Args:
        name: The channel's name, which is its folder below ``/opt/ml/input/data``.
        source: A local folder or file, or an ``s3://`` prefix, which is downloaded first.
        settings: The channel's entry in ``inputdataconfig.json``.

    Example::

        >>> InputChannel("training", "/data").path
        PosixPath('/data')
    """

    name: str
    source: str
    settings: Tuple[Tuple[str, str], ...] = (
        ("TrainingInputMode", "File"),
        ("S3DistributionType", "FullyReplicated"),
        ("RecordWrapperType", "None"),
    )

    @property
    def path(self) -> Path:
        """The local folder or file."""
        return Path(self.source)


@dataclass(frozen=True)
class Limits:
    """How long a rehearsal may take and what interrupts it. All times are seconds.

    Args:
        timeout: The rehearsal is ended after this long.
        abort_after: The other hosts are ended this long after one failed.
        interrupt_after: When the (spot) instances are taken away, once; the job is then started again.
        stop_after: When the job is stopped as StopTrainingJob does: SIGTERM, then SIGKILL.
        stop_at: The job is stopped when a line of its log contains this text.
        stop_grace: Time from SIGTERM to SIGKILL.
        names_after: Hosts can resolve each other's names only after this long.

    Example::

        >>> Limits(timeout=600, stop_after=60).stop_grace
        120.0
    """

    timeout: float = 1800.0
    abort_after: float = 10.0
    interrupt_after: Optional[float] = None
    stop_after: Optional[float] = None
    stop_at: Optional[str] = None
    stop_grace: float = 120.0
    names_after: float = 0.0


@dataclass(frozen=True)
class NetworkLink:
    """The network between two hosts. ``None`` leaves it as fast as the machine allows.

    Args:
        bits_per_second: Bandwidth of each host, limited by the kernel's ``tbf`` queueing discipline.
        latency: Seconds that a packet takes one way, added by the kernel's ``netem``, which not every kernel has.

    Example::

        >>> NetworkLink(bits_per_second=10**9, latency=0.001).is_shaped
        True
    """

    bits_per_second: Optional[int] = None
    latency: Optional[float] = None

    @property
    def is_shaped(self) -> bool:
        """Whether bandwidth or latency is set."""
        return self.bits_per_second is not None or self.latency is not None


@dataclass(frozen=True)
class RehearsalRequest:
    """A training job to rehearse, after every argument and file was read and checked.

    :func:`create_request` and :func:`request_from_body` make one.

    Args:
        job_name: The training job's name.
        sdk: The SDK that sends the request.
        distribution: The launcher.
        groups: The hosts, in groups; without instance groups there is one group.
        hyperparameters: The final strings, framework entries included, exactly as SageMaker writes them.
        entry_point: The program in the source directory; ``None`` if only the container command knows it.
        command: The container's entry point and arguments.
        code: The folder with the user's program; ``None`` if it comes from ``archive_uri`` or a channel.
        allow_files: Files of it that are packed although they are large or look like secrets.
        image: The training image, where the request has one.
        channels: The input channels.
        environment: Variables of the request; they win over those of the image and the platform.
        checkpoint_path: ``CheckpointConfig.LocalPath``.
        checkpoint_dir: A local folder in place of ``CheckpointConfig.S3Uri``.
        output_dir: A local folder that gets ``model.tar.gz``, ``output.tar.gz`` and the checkpoints.
        limits: Times and interruptions.
        link: The network between the hosts.
        local_mode_files: Write the configuration files of SDK v2's local mode, which have no groups.
        checkpoint_config: Whether the request has a ``CheckpointConfig``.
        processes: Processes per host; ``None`` lets the toolkit count.
        mpi_options: ``custom_mpi_options`` of the distribution.
        install_requirements: Whether ``requirements.txt`` is installed.
        archive_uri: ``s3://`` address of the source archive.
        output_uri: ``s3://`` prefix of the results.
        checkpoint_uri: ``s3://`` prefix of the checkpoints, which are downloaded first.
        upload: Whether results are written to ``output_uri`` and ``checkpoint_uri`` instead of a local folder.
        isolation: How hosts are separated; ``None`` takes the best that this machine allows.
        keep: Whether the rehearsal's own folder is left, for debugging.

    Example::

        >>> group = HostGroup("homogeneousCluster", "ml.m5.xlarge", ("algo-1", "algo-2"))
        >>> RehearsalRequest("job", Sdk.V2, Distribution.NONE, (group,), (("lr", "0.1"),), "train.py").hosts
        ('algo-1', 'algo-2')
    """

    job_name: str
    sdk: Sdk
    distribution: Distribution
    groups: Tuple[HostGroup, ...]
    hyperparameters: Tuple[Tuple[str, str], ...]
    entry_point: Optional[str]
    command: Tuple[str, ...] = TOOLKIT_COMMAND
    code: Optional[Path] = None
    allow_files: Tuple[str, ...] = ()
    image: Optional[str] = None
    channels: Tuple[InputChannel, ...] = ()
    environment: Tuple[Tuple[str, str], ...] = ()
    checkpoint_path: str = DEFAULT_CHECKPOINT_PATH
    checkpoint_dir: Optional[Path] = None
    output_dir: Optional[Path] = None
    limits: Limits = Limits()
    link: NetworkLink = NetworkLink()
    local_mode_files: bool = False
    checkpoint_config: bool = False
    processes: Optional[int] = None
    mpi_options: str = ""
    install_requirements: bool = True
    archive_uri: Optional[str] = None
    output_uri: Optional[str] = None
    checkpoint_uri: Optional[str] = None
    upload: bool = False
    isolation: Optional[Isolation] = None
    keep: bool = False

    @property
    def has_checkpoints(self) -> bool:
        """Whether checkpoint files are uploaded, and downloaded again at the next start."""
        return self.checkpoint_config or self.checkpoint_dir is not None or self.limits.interrupt_after is not None

    @property
    def hosts(self) -> Tuple[str, ...]:
        """All hosts, sorted as SageMaker sorts them: as text, so ``algo-10`` comes before ``algo-2``."""
        return tuple(sorted(host for group in self.groups for host in group.hosts))

    @property
    def distribution_hosts(self) -> Tuple[str, ...]:
        """The hosts that mpirun is given, in its order: those of the distribution's groups, each in its own order."""
        named = json.loads(self.hyperparameter("sagemaker_distribution_instance_groups") or "null")
        return tuple(host for group in self.groups if not named or group.name in named for host in group.hosts)

    def group_of(self, host: str) -> HostGroup:
        """The group that ``host`` belongs to."""
        return next(group for group in self.groups if host in group.hosts)

    def hyperparameter(self, name: str) -> Optional[str]:
        """The string sent for ``name``, or ``None``."""
        return dict(self.hyperparameters).get(name)

    def with_hosts(self, names: Mapping[str, str]) -> "RehearsalRequest":
        """The same request with other host names, for an isolation in which there is no ``algo-1``."""
        groups = tuple(
            dataclasses.replace(group, hosts=tuple(names[host] for host in group.hosts)) for group in self.groups
        )
        return dataclasses.replace(self, groups=groups)

    def with_hyperparameters(self, changes: Mapping[str, str]) -> "RehearsalRequest":
        """The same request with some hyperparameter strings replaced or added."""
        return dataclasses.replace(self, hyperparameters=tuple({**dict(self.hyperparameters), **changes}.items()))

    def resource_config(self, host: str, interface: str) -> Dict[str, object]:
        """The content of ``resourceconfig.json`` on ``host``."""
        if self.local_mode_files:
            # SDK v2's local mode writes neither groups nor a group name.
            return {
                "current_host": host,
                "hosts": list(self.hosts),
                "network_interface_name": interface,
                "current_instance_type": "local",
            }
        group = self.group_of(host)
        groups: List[Dict[str, object]] = [
            {"instance_group_name": each.name, "instance_type": each.instance_type, "hosts": list(each.hosts)}
            for each in self.groups
        ]
        return {
            "current_host": host,
            "current_instance_type": group.instance_type,
            "current_group_name": group.name,
            "hosts": list(self.hosts),
            "instance_groups": groups,
            "network_interface_name": interface,
        }
