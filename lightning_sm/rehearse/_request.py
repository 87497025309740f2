"""The request of a rehearsal: the CreateTrainingJob body that runs, and what is local to this machine, as one value.

Nothing is started or written here.
"""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.launch import Account, create_job_request, settings_of
from lightning_sm.launch._line import decode
from lightning_sm.launch._settings import Distribution
from lightning_sm.rehearse._sdk_v3 import DRIVERS, MODEL_TRAINER_COMMAND, driver_scripts, drivers_folder

__all__ = [
    "Distribution",
    "HostGroup",
    "InputChannel",
    "Isolation",
    "PROCESSES_PER_HOST",
    "RehearsalOptions",
    "RehearsalRequest",
    "create_request",
    "request_from_body",
]

#: The hyperparameter from which the toolkit takes the number of processes per host.
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"

_BODY_HINT = "Give the arguments of boto3's create_training_job, as JSON."


#: How hosts are separated on one machine, from the most to the least like SageMaker. ``netns`` and ``userns`` give each
#: host Linux namespaces of its own, with and without root; ``loopback`` hosts are the addresses ``127.0.0.K`` and share
#: this machine's files and processes.
Isolation = Literal["netns", "userns", "loopback"]

# In the order in which the PyTorch toolkit checks them.
_FLAGS: Tuple[Tuple[str, Distribution], ...] = (
    ("sagemaker_mpi_enabled", "mpi"),
    ("sagemaker_pytorch_ddp_enabled", "pytorchddp"),
    ("sagemaker_torch_distributed_enabled", "torch_distributed"),
    ("sagemaker_distributed_dataparallel_enabled", "smdistributed"),
)


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

        >>> InputChannel("training", "/data", {"TrainingInputMode": "File"}).path
        PosixPath('/data')
    """

    name: str
    source: str
    settings: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The local folder or file."""
        return Path(self.source)


@dataclass(frozen=True)
class RehearsalOptions:
    """What a rehearsal decides beside the body of the job: folders of this machine, the network, interruptions.

    They are options of ``lightning-sm rehearse``, where times have a unit (``90s``, ``10m``).

    Args:
        source_dir: Folder with the program, in place of the body's source archive.
        processes: Processes per host (default: GPUs, else 1, as SageMaker counts).
        launcher: ``hyperpodrun``: the agent of HyperPod runs in place of torchrun, in namespaces (``pip install
            hyperpod-elastic-agent``, which needs a torch below 2.12).
        channels: Local folder or file for an input channel, in place of the body's or in addition.
        environment: Environment variables, which win over the body's; a ``PATH`` goes in front of the container's.
        allow_files: Files of the source folder that are packed although they are large or look like secrets.
        requirements: ``requirements.txt`` is installed, into a Python environment of the rehearsal's own, unless this
            is off.
        checkpoint_dir: Folder that is read and written in place of the checkpoints' S3 prefix.
        output_dir: Folder that gets ``model.tar.gz``, ``output.tar.gz`` and the checkpoints.
        upload: Write results and checkpoints to the body's places in S3, over what is there, instead of a local folder.
        host_names: Names of the hosts, group by group, such as ``algo-1,algo-3`` (default: algo-1, algo-2 and so on).
        local_mode_files: Write the configuration files of SDK v2's local mode, which have no groups.
        isolation: How hosts are separated. ``loopback``: no rights needed, hosts are 127.0.0.K, only ``none`` and
            ``torch_distributed``; ``userns``: Linux namespaces without root; ``netns``: namespaces as root, needed for
            ``mpi``, ``pytorchddp`` and ``smdistributed`` (default: the best one here).
        bandwidth: Bits per second of each namespaced host, as ``1gbit`` (the kernel's ``tbf``).
        latency: Time that a packet takes one way between namespaced hosts, as ``1ms`` (the kernel's ``netem``).
        stop_after: Stop the job then, as StopTrainingJob and the end of a spot instance do: SIGTERM to process 1. The
            next rehearsal with the same ``checkpoint_dir`` goes on.
        stop_at: Stop the job when a line of its log contains this text.
        stop_grace: Time from that to SIGKILL.
        abort_after: End the other hosts this long after one failed.
        timeout: End the rehearsal then.

    Raises:
        RehearsalError: Two of them exclude each other.

    Example::

        >>> RehearsalOptions(timeout=600, stop_after=60).stop_grace
        120.0
    """

    source_dir: Optional[str] = None
    processes: Optional[int] = None
    launcher: Optional[Literal["hyperpodrun"]] = None
    channels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    allow_files: Tuple[str, ...] = ()
    requirements: bool = True
    checkpoint_dir: Optional[str] = None
    output_dir: Optional[str] = None
    upload: bool = False
    host_names: Tuple[str, ...] = ()
    local_mode_files: bool = False
    isolation: Optional[Isolation] = None
    bandwidth: Optional[int] = None
    latency: Optional[float] = None
    stop_after: Optional[float] = None
    stop_at: Optional[str] = None
    stop_grace: float = 120.0
    abort_after: float = 10.0
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        if (self.stop_after is not None or self.stop_at is not None) and not sys.platform.startswith("linux"):
            raise RehearsalError(
                f"--stop-after and --stop-at need Linux: {sys.platform} does not show which signals a process handles.",
                hint="Run the rehearsal on Linux, in a container for example.",
            )
        if self.upload and self.output_dir is not None:
            raise RehearsalError("--upload and --output-dir exclude each other.", hint="Leave one of them out.")
        if self.processes is not None and self.processes < 1:
            raise RehearsalError(
                f"--processes {self.processes} must be 1 or more.", hint="Leave it out for the number of GPUs."
            )


@dataclass(frozen=True)
class RehearsalRequest:
    """A training job to rehearse. :func:`create_request` and :func:`request_from_body` make one.

    Args:
        body: The body of the CreateTrainingJob request, as JSON.
        options: What is local.
        scripts: The scripts that SDK v3 generates into the channel ``sm_drivers``, where no upload has them.

    Raises:
        RehearsalError: Something in the body cannot be rehearsed.
    """

    body: str
    options: RehearsalOptions = RehearsalOptions()
    scripts: Tuple[Tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if "ResourceConfig" not in self._body:
            raise RehearsalError(
                "This is not the body of a CreateTrainingJob request: no ResourceConfig.", hint=_BODY_HINT
            )
        for key in ("HyperParameters", "Environment"):
            for name, value in (self._body.get(key) or {}).items():
                if not isinstance(value, str):
                    raise RehearsalError(
                        f"{key}: the value of {name!r} is not a string.", hint="The service takes only strings."
                    )
        if self.options.processes is not None and self.distribution == "none" and self.options.processes > 1:
            raise RehearsalError(
                f"--processes {self.options.processes} has no meaning with --distribution none: each host runs one.",
                hint="Let Lightning start them (--trainer.devices N after the entry point), or name a distribution.",
            )
        if self.options.launcher is not None and self.distribution != "torch_distributed":
            raise RehearsalError(
                f"--launcher {self.options.launcher} takes the place of torchrun, which --distribution "
                f"{self.distribution} does not start.",
                hint="Give --distribution torch_distributed.",
            )
        if not self.checkpoint_path.startswith("/opt/ml/"):
            raise RehearsalError(
                f"CheckpointConfig.LocalPath {self.checkpoint_path!r} cannot be rehearsed.",
                hint="Use a folder below /opt/ml.",
            )
        # Each raises where the body cannot be rehearsed.
        _ = self.groups, self.channels, self.distribution_hosts, self.command, self.output_uri

    @cached_property
    def _body(self) -> Dict[str, Any]:
        return dict(json.loads(self.body))

    def with_options(self, **changes: Any) -> "RehearsalRequest":
        """The same job with other options."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))

    @property
    def job_name(self) -> str:
        """The training job's name."""
        return str(self._body.get("TrainingJobName", "rehearsal"))

    @property
    def sdk(self) -> str:
        """The SageMaker Python SDK that makes such requests: ``v2`` (estimators) or ``v3`` (``ModelTrainer``)."""
        return "v3" if any(each["ChannelName"] == "sm_drivers" for each in self._inputs) else "v2"

    @property
    def image(self) -> str:
        """The training image."""
        return str(self._algorithm.get("TrainingImage", ""))

    @property
    def command(self) -> Tuple[str, ...]:
        """The container's entry point and arguments."""
        given = (*self._algorithm.get("ContainerEntrypoint", ()), *self._algorithm.get("ContainerArguments", ()))
        return given or ("train",)

    @property
    def hyperparameters(self) -> Dict[str, str]:
        """The strings of ``hyperparameters.json``, framework entries included."""
        found: Dict[str, str] = dict(self._body.get("HyperParameters") or {})
        if self.options.processes is not None and self.sdk == "v2":
            found[PROCESSES_PER_HOST] = json.dumps(self.options.processes)
        return found

    @property
    def environment(self) -> Dict[str, str]:
        """The request's environment variables, which win over those of the image and the platform."""
        return {**(self._body.get("Environment") or {}), **self.options.environment}

    @cached_property
    def distribution(self) -> Distribution:
        """The launcher that the PyTorch toolkit, or SDK v3's script, chooses."""
        script = dict(self.scripts).get("sm_train.sh", "")
        sent = self._body.get("HyperParameters") or {}
        found = [distribution for distribution, (_, driver) in DRIVERS.items() if driver in script]
        found += [distribution for flag, distribution in _FLAGS if decode(sent.get(flag, "null"))]
        if found[:1] == ["mpi"] and decode(sent.get("mp_parameters", "null")):
            return "smp"
        return found[0] if found else "none"

    @property
    def uses_mpirun(self) -> bool:
        """Whether the hosts reach each other by ssh."""
        return self.distribution not in ("none", "torch_distributed")

    @cached_property
    def groups(self) -> Tuple[HostGroup, ...]:
        """The hosts, in groups; without instance groups there is one group."""
        resources = self._body["ResourceConfig"]
        preferred = (resources.get("InstancePreferences") or [{}])[0]
        homogeneous = {**resources, **preferred, "InstanceGroupName": "homogeneousCluster"}
        found: List[HostGroup] = []
        first = 0
        for group in resources.get("InstanceGroups") or [homogeneous]:
            count = int(group.get("InstanceCount", 0))
            if not group.get("InstanceType") or count < 1:
                raise RehearsalError(
                    f"ResourceConfig: {group} has no InstanceType or no InstanceCount.", hint="Each group has both."
                )
            numbered = tuple(f"algo-{number}" for number in range(first + 1, first + count + 1))
            names = self.options.host_names[first : first + count] if self.options.host_names else numbered
            found.append(HostGroup(group["InstanceGroupName"], group["InstanceType"], names))
            first += count
        if len({host for group in found for host in group.hosts}) != first or self.options.host_names[first:]:
            raise RehearsalError(
                f"--host-names {','.join(self.options.host_names)} are not names of {first} hosts.",
                hint="Name each host once, group by group.",
            )
        return tuple(found)

    @property
    def hosts(self) -> Tuple[str, ...]:
        """All hosts, sorted as SageMaker sorts them: as text, so ``algo-10`` comes before ``algo-2``."""
        return tuple(sorted(host for group in self.groups for host in group.hosts))

    @property
    def distribution_hosts(self) -> Tuple[str, ...]:
        """The hosts that mpirun is given, in its order: those of the distribution's groups, each in its own order."""
        named = json.loads(self.hyperparameters.get("sagemaker_distribution_instance_groups", "null"))
        return tuple(host for group in self.groups if not named or group.name in named for host in group.hosts)

    def group_of(self, host: str) -> HostGroup:
        """The group that ``host`` belongs to."""
        return next(group for group in self.groups if host in group.hosts)

    @cached_property
    def channels(self) -> Tuple[InputChannel, ...]:
        """The input channels."""
        local = dict(self.options.channels)
        # SDK v3 uploads the program there, and SageMaker brings the archive of a job without a network.
        if self.options.source_dir is not None and any(each["ChannelName"] == "code" for each in self._inputs):
            local["code"] = self.options.source_dir
        default_mode = self._algorithm.get("TrainingInputMode", "File")
        found: List[InputChannel] = []
        for entry in (*self._inputs, *({"ChannelName": name} for name in local)):
            name = entry["ChannelName"]
            if any(channel.name == name for channel in found):
                continue
            data = entry.get("DataSource", {}).get("S3DataSource", {})
            settings = {
                "TrainingInputMode": entry.get("InputMode", default_mode),
                "S3DistributionType": data.get("S3DataDistributionType", "FullyReplicated"),
                "RecordWrapperType": entry.get("RecordWrapperType", "None"),
            }
            if "ContentType" in entry:
                settings["ContentType"] = entry["ContentType"]
            if name in local:
                source = _address(name, {"S3Uri": local[name]}, "File")
            else:
                source = _address(name, data, settings["TrainingInputMode"])
            found.append(InputChannel(name, source, settings))
        return tuple(found)

    @property
    def checkpoint_path(self) -> str:
        """``CheckpointConfig.LocalPath``."""
        path: str = (self._body.get("CheckpointConfig") or {}).get("LocalPath", "/opt/ml/checkpoints")
        return path

    @property
    def has_checkpoints(self) -> bool:
        """Whether checkpoint files are uploaded, and downloaded again at the next start."""
        return self._body.get("CheckpointConfig") is not None or self.options.checkpoint_dir is not None

    @property
    def archive_uri(self) -> Optional[str]:
        """The ``s3://`` address of the source archive that the hosts get, if it is not made of a local folder."""
        if self.options.source_dir is not None:
            return None
        # Text is written as JSON by SDK v2, and unchanged by others.
        return _in_s3(decode(self.hyperparameters.get("sagemaker_submit_directory", "null")))

    @property
    def output_uri(self) -> Optional[str]:
        """The ``s3://`` prefix of the results."""
        return _in_s3((self._body.get("OutputDataConfig") or {}).get("S3OutputPath"))

    @property
    def checkpoint_uri(self) -> Optional[str]:
        """The ``s3://`` prefix of the checkpoints, which are downloaded first, if no local folder replaces it."""
        given = (self._body.get("CheckpointConfig") or {}).get("S3Uri")
        return None if self.options.checkpoint_dir is not None else _in_s3(given)

    @property
    def _algorithm(self) -> Dict[str, Any]:
        return self._body.get("AlgorithmSpecification") or {}

    @property
    def _inputs(self) -> Sequence[Dict[str, Any]]:
        return self._body.get("InputDataConfig") or ()


def create_request(
    entry_point: str,
    options: RehearsalOptions = RehearsalOptions(),
    *,
    hosts: int = 1,
    distribution: Distribution = "none",
    sdk: Literal["v2", "v3"] = "v2",
    instance_type: str = "ml.m5.xlarge",
    instance_groups: Sequence[str] = (),
    distribution_groups: Sequence[str] = (),
    mpi_options: str = "",
    image: str = "rehearsal/image",
    forward_sigterm: bool = True,
    job_name: str = "rehearsal",
    hyperparameters: Optional[Mapping[str, Any]] = None,
) -> RehearsalRequest:
    """Return the request of a job from a local folder, with the body that ``lightning-sm launch`` would send for it.

    Args:
        entry_point: Program in the source folder: ``.py`` or ``.sh``.
        options: What is local, such as the source folder (by default the current one).
        hosts: Number of instances.
        distribution: The launcher: ``none``, ``torch_distributed``, ``pytorchddp``, ``smdistributed``, ``mpi`` or
            ``smp``.
        sdk: ``v2``: the training toolkit; ``v3``: the drivers of ``ModelTrainer``.
        instance_type: What the files say. It also decides what the SDK accepts.
        instance_groups: Groups of a heterogeneous cluster, each as ``NAME=COUNT:TYPE``, with commas between them.
        distribution_groups: Groups that the distribution is for, with commas between them (default: all).
        mpi_options: ``custom_mpi_options`` of the distribution.
        image: Training image, as for ``launch``: the summary compares its versions with those here, and AWS's own are
            started by their script.
        forward_sigterm: The container is started by a script that forwards SIGTERM to the program, as ``launch`` does,
            unless this is off.
        job_name: Name of the training job.
        hyperparameters: Names and values of any JSON type.

    Raises:
        RehearsalError: An argument cannot be used, or two exclude each other.
        LaunchError: ``lightning-sm launch`` would refuse an argument.

    Example::

        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "train.py").write_text("print('hello')")
        >>> request = create_request("train.py", RehearsalOptions(source_dir=folder.name, timeout=600), hosts=2,
        ...                          distribution="torch_distributed", hyperparameters={"trainer.max_epochs": 2})
        >>> request.hosts, request.hyperparameters["trainer.max_epochs"]
        (('algo-1', 'algo-2'), '2')
        >>> folder.cleanup()
    """
    source = Path(options.source_dir or ".").resolve()
    options = dataclasses.replace(options, source_dir=str(source))
    is_below = not Path(entry_point).is_absolute() and ".." not in Path(entry_point).parts
    if not (is_below and (source / entry_point).is_file()):
        raise RehearsalError(
            f"The entry point {entry_point!r} is not a file in {source}.",
            hint="Its path is relative to --source-dir.",
        )
    if options.upload:
        raise RehearsalError("--upload is for --request, whose body names places in S3.", hint="Use --output-dir.")
    if instance_groups and hosts != 1:
        raise RehearsalError("--hosts and --instance-groups exclude each other.", hint="The groups say how many hosts.")
    settings: Dict[str, Any] = {
        "image": image,
        # Nothing is sent.
        "role": "arn:aws:iam::000000000000:role/rehearsal",
        "instance_groups": list(instance_groups),
        "instance_type": "" if instance_groups else instance_type,
        "instances": hosts,
        "distribution": distribution,
        "distribution_groups": list(distribution_groups),
        "mpi_options": mpi_options,
        "source_dir": str(source),
        "entry_point": entry_point,
        "hyperparameters": dict(hyperparameters or {}),
        "forward_sigterm": forward_sigterm,
    }
    body = create_job_request(settings_of(settings), Account("us-east-1", "rehearsal"), name=job_name).as_body()
    # There is nothing at the other addresses in S3.
    del body["OutputDataConfig"], body["CheckpointConfig"]["S3Uri"]
    if sdk == "v2":
        return RehearsalRequest(json.dumps(body), options)
    scripts = driver_scripts(distribution, entry_point, processes=options.processes, mpi_options=mpi_options)
    body["AlgorithmSpecification"].update(ContainerEntrypoint=list(MODEL_TRAINER_COMMAND), ContainerArguments=[])
    drivers = {"S3DataSource": {"S3Uri": f"file://{drivers_folder()}"}}
    body["InputDataConfig"] = [{"ChannelName": "code"}, {"ChannelName": "sm_drivers", "DataSource": drivers}]
    # ModelTrainer leaves strings unchanged.
    values = (hyperparameters or {}).items()
    body["HyperParameters"] = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values}
    return RehearsalRequest(json.dumps(body), options, scripts)


def request_from_body(body: Mapping[str, Any], options: RehearsalOptions = RehearsalOptions()) -> RehearsalRequest:
    """Return the request that a CreateTrainingJob body describes. Options replace its S3 folders by local ones.

    What the body names in S3 is only read, unless ``options.upload`` is set. Results are collected in
    ``options.output_dir``, or in a new temporary folder.

    Args:
        body: The body, as boto3's ``create_training_job`` is given it, or what ``describe_training_job`` returns.
        options: What is local.

    Raises:
        RehearsalError: Something in the body cannot be rehearsed.

    Example::

        >>> body = {"TrainingJobName": "job-1", "HyperParameters": {"sagemaker_program": "train.py"},
        ...         "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge"}}
        >>> request = request_from_body(body, RehearsalOptions(source_dir="."))
        >>> request.job_name, request.hosts
        ('job-1', ('algo-1', 'algo-2'))
    """
    try:
        # describe_training_job has times in it.
        return RehearsalRequest(json.dumps(dict(body), default=str), options)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RehearsalError(
            f"This is not the body of a CreateTrainingJob request ({type(error).__name__}: {error}).", hint=_BODY_HINT
        ) from error


def _in_s3(uri: Optional[str]) -> Optional[str]:
    return uri if uri is not None and str(uri).startswith("s3://") else None


def _address(name: str, data: Mapping[str, Any], mode: str) -> str:
    """The ``s3://`` prefix, or the local folder, of a channel of the body."""
    hint = f"Give a local folder: --channel {name}=PATH"
    if data.get("S3DataType", "S3Prefix") != "S3Prefix" or mode == "Pipe":
        raise RehearsalError(f"Channel {name}: only S3Prefix in File or FastFile mode can be fetched.", hint=hint)
    uri = str(data.get("S3Uri", ""))
    if _in_s3(uri):
        return uri
    path = Path(uri[len("file://") :] if uri.startswith("file://") else uri).resolve()
    if not uri or not path.exists():
        raise RehearsalError(f"Channel {name}: {uri!r} is neither an s3:// prefix nor an existing folder.", hint=hint)
    if not path.is_file() and not any(files for _, _, files in os.walk(path, followlinks=True)):
        raise RehearsalError(
            f"Channel {name}: {path} has no files, and SageMaker refuses to start a job with an empty channel.",
            hint=hint,
        )
    return str(path)
