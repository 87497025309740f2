"""``TrainingJob``: the training job as SageMaker describes it to this host, as one frozen value."""

from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Sequence, Tuple

from lightning_sm._logging import log
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job_files import Channel, InstanceGroup, read_job_fields
from lightning_sm.errors import RoutingError

__all__ = ["Channel", "InstanceGroup", "TrainingJob"]

# Channels that SDK v3 adds itself: sagemaker-train, sagemaker/train/constants.py.
_SDK_CHANNELS = frozenset({"code", "sm_drivers", "recipe"})


@dataclass(frozen=True)
class TrainingJob:
    """The SageMaker training job, as this host sees it.

    Read it with :meth:`resolve`. Outside a SageMaker training container every field is empty and ``in_container`` is
    false. Where a file and a variable describe the same thing, the file is used: the files of the local host are right
    under every launcher, while ``mpirun`` exports the first host's ``SM_*`` variables to all hosts.

    Files, in ``input/config`` below the base directory. The service writes them on each host before the container
    starts:

    ``resourceconfig.json``
      Hosts, instance groups, instance type and network interface. Its presence, or that of both ``SM_CURRENT_HOST``
      and ``SM_HOSTS``, makes ``in_container`` true. The SDK's local mode writes no instance groups.

    ``inputdataconfig.json``
      The input channels with their input modes. Absent in a job without input channels.

    ``hyperparameters.json``
      The hyperparameters, each as a string; see :class:`~lightning_sm.Hyperparameters`.

    ``checkpointconfig.json``
      ``LocalPath``, the directory that the service synchronizes with S3. Absent in a job without ``CheckpointConfig``.

    ``tensorboardoutputconfig.json``
      ``LocalPath``, the directory whose files the service uploads as TensorBoard output. Absent in a job without
      ``TensorBoardOutputConfig``.

    Environment variables set by the service for the container:

    ``TRAINING_JOB_NAME``, ``TRAINING_JOB_ARN``
      The name of the job. ``mpirun`` does not export them to other hosts.

    Environment variables set by the training toolkit (SDK v2) or the container drivers (SDK v3) before the script
    starts. Absent in containers with an entry point of their own:

    ``SM_HOSTS``, ``SM_CURRENT_HOST``
      All hosts as a JSON list, and this one. Used where ``resourceconfig.json`` does not have the value.

    ``SM_CURRENT_INSTANCE_GROUP``, ``SM_CURRENT_INSTANCE_TYPE``, ``SM_NETWORK_INTERFACE_NAME``
      The same for this host's instance group, instance type and network interface.

    ``SM_NUM_GPUS``, ``SM_NUM_NEURONS``
      Accelerators of this host.

    ``SM_CHANNELS``, ``SM_CHANNEL_<NAME>``
      The names of the channels, used where there is no ``inputdataconfig.json``; the directory of each channel, by
      default ``<SM_INPUT_DIR>/data/<name>``.

    ``SM_HPS``, ``SM_FRAMEWORK_PARAMS``
      The user's and SageMaker's own hyperparameters, used where there is no ``hyperparameters.json``.

    ``SM_INPUT_DIR``, ``SM_INPUT_CONFIG_DIR``, ``SM_MODEL_DIR``, ``SM_OUTPUT_DIR``, ``SM_OUTPUT_DATA_DIR``
      Directories instead of ``input``, ``input/config``, ``model``, ``output`` and ``output/data`` below the base
      directory.

    ``SAGEMAKER_JOB_NAME``
      The name of the job where neither the service's variables nor the hyperparameter ``sagemaker_job_name`` name it.

    Environment variables set by the user, in a rehearsal by ``lightning-sm rehearse``:

    ``SAGEMAKER_BASE_DIR``
      The base directory instead of ``/opt/ml``.

    ``CUDA_VISIBLE_DEVICES``
      The GPUs that are used, where these are fewer than the host has.

    Sources: ``sagemaker_training/environment.py``, ``sagemaker_training/params.py``,
    ``smdebug/core/config_constants.py`` (``DEFAULT_SAGEMAKER_TENSORBOARD_PATH``), and AWS, "How Amazon SageMaker
    Provides Training Information".

    Args:
        in_container: Whether this process runs in a SageMaker training container.
        name: The name of the training job, which a restart keeps. ``None`` if unknown, as on hosts that
            ``mpirun`` reached. In a tuning job the SDK's hyperparameter and ``SAGEMAKER_JOB_NAME`` are not used,
            because all training jobs of the tuning job share them.
        current_host: The name of this host, such as ``algo-1``.
        hosts: All hosts of the job, in SageMaker's order.
        current_group_name: The instance group of this host; ``None`` in local mode.
        instance_groups: All instance groups; empty in local mode.
        distribution_groups: The names of the groups that take part in the distribution (hyperparameter
            ``sagemaker_distribution_instance_groups``); empty where the job names none.
        current_instance_type: The instance type of this host, such as ``ml.p4d.24xlarge``.
        network_interface_name: The network interface between hosts, such as ``eth0``.
        num_gpus: GPUs of this host that its processes see; ``None`` if unknown.
        num_neurons: Neuron cores of this host, on Trainium; ``None`` if unknown.
        channels: The input channels by name, including those of the SDK itself (see :attr:`data_channels`).
        hyperparameters: The user's and SageMaker's own hyperparameters.
        base_dir: ``/opt/ml``, or ``SAGEMAKER_BASE_DIR``.
        model_dir: The directory that is uploaded as ``model.tar.gz``.
        output_data_dir: The directory that is uploaded as ``output.tar.gz``.
        failure_file: The file whose first 1,024 characters become the job's failure reason.
        checkpoint_dir: ``LocalPath``, else ``checkpoints`` below the base directory if it exists, else ``checkpoints``
            below ``output_data_dir``.
        tensorboard_dir: ``LocalPath`` of the job's ``TensorBoardOutputConfig``; ``None`` without one.
        sources: The file or variable that each field was read from, by the name of the field.

    Example::

        >>> job = TrainingJob.resolve({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"})
        >>> job.in_container, job.current_host, job.world_hosts, job.model_dir
        (True, 'algo-2', ('algo-1', 'algo-2'), '/opt/ml/model')
        >>> job.sources["current_host"]
        'SM_CURRENT_HOST'
        >>> TrainingJob.resolve({}).in_container
        False
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
    tensorboard_dir: Optional[str] = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def resolve(cls, environ: Optional[Mapping[str, str]] = None) -> "TrainingJob":
        """Read the job from its files and environment variables.

        Args:
            environ: The environment variables instead of ``os.environ``.

        Raises:
            JobConfigError: A file or variable is malformed, or two of them contradict each other.
        """
        return cls(**read_job_fields(environ))

    def channel(self, name: str, default: Optional[str] = None) -> str:
        """Return the directory of an input channel.

        Args:
            name: The name of the channel, such as ``training``.
            default: The directory to return where the job has no such channel, such as one on a laptop.

        Raises:
            RoutingError: There is no such channel and no default, or the channel is a pipe, missing or empty.

        Example::

            >>> TrainingJob.resolve({}).channel("training", default="./data")
            './data'
        """
        found = self.channels.get(name)
        if found is not None:
            found.validate()
            return found.path
        if default is None:
            names = ", ".join(sorted(self.data_channels)) or "none"
            raise RoutingError(
                f"The job has no channel {name!r}. Its channels: {names}."
                if self.in_container
                else f"No channel {name!r}: this process does not run in a SageMaker training job.",
                hint=f"Add that input channel to the job, or set a default: job.channel({name!r}, default=...).",
            )
        if self.in_container:
            log.info("The job has no channel %r; using the default %s", name, default)
        return default

    def hydra_overrides(self, args: Sequence[str]) -> List[str]:
        """Return the arguments that Hydra is to parse.

        SageMaker passes ``--key value``, which Hydra does not accept, or nothing. In a training job the hyperparameters
        stand there as ``key=value`` instead, but those whose key was typed, as in the processes that Lightning starts.

        Args:
            args: ``sys.argv[1:]``.

        Raises:
            HyperparameterError: Hydra's command line cannot write a key of a dict among the hyperparameters.

        Example::

            >>> environ = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_HPS": '{"lr": 0.1}'}
            >>> TrainingJob.resolve(environ).hydra_overrides(["--lr", "0.1"])
            ['lr=0.1']
        """
        if not self.in_container:
            return list(args)
        typed = self.hyperparameters.typed(args)
        keys = {word.partition("=")[0] for word in typed}
        words = [word for word in self.hyperparameters.as_hydra() if word.partition("=")[0] not in keys]
        flags = [word for word in words if word.startswith("--")]
        return [*flags, *typed, *words[len(flags) :]]

    @property
    def data_channels(self) -> Mapping[str, Channel]:
        """The channels that carry the user's data: all but those of the SDK itself."""
        return {name: channel for name, channel in self.channels.items() if name not in _SDK_CHANNELS}

    @property
    def world_hosts(self) -> Tuple[str, ...]:
        """The hosts that train together with this one, in SageMaker's order. The first one is the main host.

        These are the hosts of the distribution's groups if this host belongs to one of them, else the hosts of its own
        group, else all hosts (local mode). Source: ``sagemaker_training/environment.py``, ``get_distribution_hosts``.
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

    @property
    def asks_for_parameter_server(self) -> bool:
        """Whether the job's ``distribution`` is ``parameter_server``, which PyTorch's containers start like none."""
        return self.hyperparameters.enabled("sagemaker_parameter_server_enabled")
