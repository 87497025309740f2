"""What one rehearsal is to run: a CreateTrainingJob request, resolved to this machine, as a frozen value."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

__all__ = ["DEFAULT_CHECKPOINT_PATH", "Channel", "InstanceGroup", "Limits", "Link", "RehearsalRequest"]

#: What ``CheckpointConfig.LocalPath`` is when a request does not say.
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

#: The group name that SageMaker writes when a request has no instance groups.
HOMOGENEOUS = "homogeneousCluster"


@dataclass(frozen=True)
class InstanceGroup:
    """Hosts of one kind. The first host in the order given is the master, as in the toolkit: nothing is sorted here."""

    name: str
    instance_type: str
    hosts: Tuple[str, ...]


@dataclass(frozen=True)
class Channel:
    """One input channel. ``source`` is a local folder or file, or an ``s3://`` prefix that is fetched first."""

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
    """How long things may take, in seconds. ``interrupt_after`` is when the spot instances are taken away.

    ``stop_after`` is when the job is stopped as StopTrainingJob does it: SIGTERM, and SIGKILL after ``stop_grace``;
    ``stop_at`` is what a line of the log holds when that is to happen.
    """

    timeout: float = 1800.0
    abort_after: float = 10.0
    interrupt_after: Optional[float] = None
    stop_after: Optional[float] = None
    stop_at: Optional[str] = None
    stop_grace: float = 120.0
    names_after: float = 0.0


@dataclass(frozen=True)
class Link:
    """The network between two hosts. ``None`` leaves it as fast as the machine makes it."""

    bits_per_second: Optional[int] = None
    latency_ms: Optional[float] = None

    @property
    def shaped(self) -> bool:
        """Whether anything is asked of the network."""
        return self.bits_per_second is not None or self.latency_ms is not None


@dataclass(frozen=True)
class RehearsalRequest:
    """Everything a rehearsal needs to know, after every argument and file was read and checked.

    ``hyperparameters`` are the final strings, framework entries included, exactly as SageMaker would write them.
    ``code`` is the folder with the user's program; ``None`` when the job brings it in another way: as an archive in S3
    (``archive_uri``), or as a channel of SDK v3. The other two URIs are where results go, when they are to go to S3.
    """

    job_name: str
    sdk: str
    distribution: str
    groups: Tuple[InstanceGroup, ...]
    hyperparameters: Tuple[Tuple[str, str], ...]
    entry_point: Optional[str]
    command: Tuple[str, ...] = ("train",)
    code: Optional[Path] = None
    channels: Tuple[Channel, ...] = ()
    environment: Tuple[Tuple[str, str], ...] = ()
    checkpoint_path: str = DEFAULT_CHECKPOINT_PATH
    checkpoint_dir: Optional[Path] = None
    output_dir: Optional[Path] = None
    limits: Limits = Limits()
    link: Link = Link()
    local_mode_files: bool = False
    checkpoint_config: bool = False
    processes: Optional[int] = None
    mpi_options: str = ""
    install_requirements: bool = True
    archive_uri: Optional[str] = None
    output_uri: Optional[str] = None
    checkpoint_uri: Optional[str] = None

    @property
    def has_checkpoints(self) -> bool:
        """Whether the job has a checkpoint configuration: its files are uploaded, and there at the next start."""
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

    def group_of(self, host: str) -> InstanceGroup:
        """The group that ``host`` belongs to."""
        return next(group for group in self.groups if host in group.hosts)

    def hyperparameter(self, name: str) -> Optional[str]:
        """The string sent for ``name``, or ``None``."""
        return dict(self.hyperparameters).get(name)

    def with_hosts(self, names: Mapping[str, str]) -> RehearsalRequest:
        """The same request with other host names, for an isolation that cannot have ``algo-1``."""
        groups = tuple(
            dataclasses.replace(group, hosts=tuple(names[host] for host in group.hosts)) for group in self.groups
        )
        return dataclasses.replace(self, groups=groups)

    def with_hyperparameters(self, changes: Mapping[str, str]) -> RehearsalRequest:
        """The same request with some hyperparameter strings replaced or added."""
        return dataclasses.replace(self, hyperparameters=tuple({**dict(self.hyperparameters), **changes}.items()))

    def resource_config(self, host: str, interface: str) -> Dict[str, object]:
        """The content of ``resourceconfig.json`` as ``host`` finds it."""
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
