"""``TrainingJob``: what SageMaker told this host, as one frozen value that knows where each part came from."""

from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Sequence, Tuple

from lightning_sm._logging import log
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm.errors import RoutingError

__all__ = ["Channel", "InstanceGroup", "TrainingJob", "SDK_CHANNELS"]

# Channels that SDK v3 adds for itself: sagemaker-train, sagemaker/train/constants.py.
SDK_CHANNELS = frozenset({"code", "sm_drivers", "recipe"})


@dataclass(frozen=True)
class InstanceGroup:
    """A group of equal instances: ``instance_groups`` of ``resourceconfig.json``."""

    name: str
    instance_type: Optional[str]
    hosts: Tuple[str, ...]


@dataclass(frozen=True)
class Channel:
    """An input channel: an entry of ``inputdataconfig.json``.

    Args:
        name: The channel's name.
        path: The folder that holds its files.
        input_mode: ``File``, ``FastFile`` or ``Pipe``; ``None`` where only the variables tell of the channel.
    """

    name: str
    path: str
    input_mode: Optional[str] = None


@dataclass(frozen=True)
class TrainingJob:
    """The training job as this host sees it. Outside a container every part is empty and ``in_container`` is false.

    Files come before variables: ``resourceconfig.json``, ``inputdataconfig.json``, ``hyperparameters.json`` and
    ``checkpointconfig.json`` of the local host are right under every launcher, ``SM_*`` are not (``mpirun`` hands the
    master's to every host). Read it with :meth:`resolve`.

    Args:
        in_container: Whether this process runs in a SageMaker training container.
        name: The training job's name, which a restart keeps: ``TRAINING_JOB_NAME``, ``TRAINING_JOB_ARN``, else the
            SDK's hyperparameter ``sagemaker_job_name`` and ``SAGEMAKER_JOB_NAME``, which jobs of one tuning job share
            and which is not read there. ``None`` where nothing tells. Other hosts of ``mpirun`` may lack it.
        current_host: This host's name, such as ``algo-1``.
        hosts: All hosts of the job, in the order that SageMaker lists them.
        current_group_name: The instance group of this host; ``None`` in local mode.
        instance_groups: All instance groups; empty in local mode.
        distribution_groups: The names of the groups that take part in the distribution, where the job names them.
        current_instance_type: Such as ``ml.p4d.24xlarge``.
        network_interface_name: Such as ``eth0``.
        num_gpus: GPUs of this host; ``None`` where nothing tells.
        num_neurons: Neuron cores of this host, on Trainium; ``None`` where nothing tells.
        channels: The input channels by name, the SDK's own among them (see :attr:`data_channels`).
        hyperparameters: The user's hyperparameters, typed, and SageMaker's own.
        base_dir: ``/opt/ml``, or ``SAGEMAKER_BASE_DIR`` in a rehearsal.
        model_dir: What is uploaded as ``model.tar.gz``.
        output_data_dir: What is uploaded as ``output.tar.gz``.
        failure_file: The file whose first 1,024 characters become the job's failure reason.
        checkpoint_dir: What is synchronised with S3 while the job runs, or a folder below ``output_data_dir``.
        sources: Where each part came from, by its name here.
    """

    in_container: bool = False
    name: Optional[str] = None
    current_host: Optional[str] = None
    hosts: Tuple[str, ...] = ()
    current_group_name: Optional[str] = None
    instance_groups: Tuple[InstanceGroup, ...] = ()
    distribution_groups: Tuple[str, ...] = ()
    current_instance_type: Optional[str] = None
    network_interface_name: Optional[str] = None
    num_gpus: Optional[int] = None
    num_neurons: Optional[int] = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    base_dir: Optional[str] = None
    model_dir: Optional[str] = None
    output_data_dir: Optional[str] = None
    failure_file: Optional[str] = None
    checkpoint_dir: Optional[str] = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def resolve(cls, environ: Optional[Mapping[str, str]] = None) -> "TrainingJob":
        """Read the job from its files and variables.

        Args:
            environ: The variables to read instead of ``os.environ``.

        Raises:
            JobConfigError: A file or variable is broken, or they contradict each other.
        """
        from lightning_sm._sagemaker.job_files import read_training_job

        return read_training_job(environ)

    def channel(self, name: str, default: Optional[str] = None) -> str:
        """Return the folder that holds a channel's files.

        Args:
            name: The channel's name, such as ``training``.
            default: What to return where there is no such channel, such as a folder on a laptop.

        Raises:
            RoutingError: There is no such channel and no default, or it is a pipe, missing or empty.
        """
        from lightning_sm._config.channels import check_channel

        found = self.channels.get(name)
        if found is not None:
            check_channel(found)
            return found.path
        if default is None:
            where = f"The job has no channel {name!r}; it has: {', '.join(sorted(self.data_channels)) or 'none'}"
            raise RoutingError(
                f"{where}." if self.in_container else f"There is no channel {name!r}, because this is no training job.",
                hint=f"Give the job that input channel, or write job.channel({name!r}, default=...).",
            )
        if self.in_container:
            log.info("The job has no channel %r: %s is read instead", name, default)
        return default

    def hydra_overrides(self, words: Sequence[str]) -> List[str]:
        """Return what Hydra is to read as its command line.

        SageMaker passes ``--key value``, which Hydra refuses. In a job the hyperparameters take the place of that as
        ``key=value``, with their types; other words are returned as they are.

        Args:
            words: ``sys.argv[1:]``.
        """
        by_sagemaker = self.in_container and bool(words) and words[0].startswith("-")
        # Lightning starts the other processes of a host with the words of the first and some of Hydra's.
        by_lightning = any(word.startswith("hydra.") for word in words)
        return self.hyperparameters.as_hydra() if by_sagemaker and not by_lightning else list(words)

    @property
    def data_channels(self) -> Mapping[str, Channel]:
        """The channels that carry the user's data: all but the SDK's own."""
        return {name: channel for name, channel in self.channels.items() if name not in SDK_CHANNELS}

    @property
    def world_hosts(self) -> Tuple[str, ...]:
        """The hosts that train together with this one, in the order given. The first is the master.

        They are those of the distribution's groups where this host is in one of them, else those of this host's own
        group, else all (local mode names no groups). Source: ``sagemaker_training/environment.py``,
        ``get_distribution_hosts``.
        """
        names = self.distribution_groups
        if self.current_group_name not in names:
            names = (self.current_group_name,) if self.current_group_name is not None else ()
        hosts = tuple(host for group in self.instance_groups if group.name in names for host in group.hosts)
        return hosts or self.hosts

    @property
    def asks_for_smddp(self) -> bool:
        """Whether the job's ``distribution`` is ``smdistributed.dataparallel`` (or ``pytorchddp`` of a newer SDK)."""
        return self.hyperparameters.enabled("sagemaker_distributed_dataparallel_enabled")
