"""A :class:`RehearsalRequest` from the arguments of an estimator. Nothing is started or written here."""

import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._request import (
    HOMOGENEOUS_CLUSTER,
    TOOLKIT_COMMAND,
    Distribution,
    HostGroup,
    InputChannel,
    Isolation,
    Limits,
    NetworkLink,
    RehearsalRequest,
    Sdk,
)
from lightning_sm.rehearse._sdk import (
    MODEL_TRAINER_COMMAND,
    V3_DISTRIBUTIONS,
    encode_hyperparameters,
    framework_hyperparameters,
)

__all__ = ["PathLike", "as_isolation", "as_member", "check_limits", "create_request", "local_channels", "resolved"]

_MAX_HOSTS = 100
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,255}")
_GROUP = re.compile(r"(?P<name>[\w-]+)=(?:(?P<count>\d+)|(?P<hosts>algo-\d+(?:\+algo-\d+)*))(?::(?P<type>[\w.\-]+))?")

PathLike = Union[str, Path]
_Member = TypeVar("_Member", Distribution, Sdk, Isolation)


def create_request(
    entry_point: str,
    *,
    source_dir: PathLike = ".",
    hosts: Optional[int] = None,
    processes: Optional[int] = None,
    distribution: Union[str, Distribution] = Distribution.NONE,
    sdk: Union[str, Sdk] = Sdk.V2,
    instance_type: str = "ml.m5.xlarge",
    instance_groups: Optional[str] = None,
    distribution_groups: Sequence[str] = (),
    mpi_options: str = "",
    hyperparameters: Optional[Mapping[str, Any]] = None,
    channels: Optional[Mapping[str, PathLike]] = None,
    environment: Optional[Mapping[str, str]] = None,
    command: Optional[Sequence[str]] = None,
    job_name: str = "rehearsal",
    checkpoint_dir: Optional[PathLike] = None,
    output_dir: Optional[PathLike] = None,
    install_requirements: bool = True,
    local_mode_files: bool = False,
    limits: Optional[Limits] = None,
    link: Optional[NetworkLink] = None,
    isolation: Union[str, Isolation, None] = None,
    keep: bool = False,
) -> RehearsalRequest:
    """Return the request of a job as an estimator (or SDK v3's ``ModelTrainer``) is given it.

    The arguments are the options of ``lightning-sm rehearse`` by the same names, which errors mention.

    Args:
        entry_point: The program in ``source_dir``, ``.py`` or ``.sh``.
        source_dir: The folder with the program.
        hosts: Number of hosts, 1 by default; excluded by ``instance_groups``.
        processes: Processes per host. By default the number of GPUs, or 1.
        distribution: The launcher.
        sdk: The SDK that sends the request.
        instance_type: What the configuration files say. It also decides what the SDK accepts.
        instance_groups: A heterogeneous cluster, as ``"head=1:ml.m5.large,workers=algo-3+algo-2"``: the number of
            hosts or their names in order, and an instance type if it is not ``instance_type``.
        distribution_groups: The groups that the distribution is for; all by default.
        mpi_options: ``custom_mpi_options`` of the distribution.
        hyperparameters: Names and values of any JSON type.
        channels: A local folder or file for each input channel.
        environment: Environment variables. A ``PATH`` goes in front of the container's.
        command: The container's entry point and arguments; by default ``train``, or SDK v3's own.
        job_name: The training job's name.
        checkpoint_dir: A local folder in place of ``CheckpointConfig.S3Uri``, read before and written after the job.
        output_dir: A local folder that gets ``model.tar.gz``, ``output.tar.gz`` and the checkpoints.
        install_requirements: Whether ``requirements.txt`` is installed, into a virtual environment of the rehearsal.
        local_mode_files: Write the configuration files of SDK v2's local mode, which have no groups.
        limits: Times and interruptions.
        link: The network between the hosts. Only namespaced hosts can have another than the machine's own.
        isolation: How hosts are separated. By default the best that this machine allows.
        keep: Whether the rehearsal's own folder is left, for debugging.

    Raises:
        RehearsalError: An argument cannot be used, or two exclude each other.

    Example::

        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "train.py").write_text("print('hello')")
        >>> request = create_request("train.py", source_dir=folder.name, hosts=2, distribution="torch_distributed",
        ...                          hyperparameters={"trainer.max_epochs": 2}, limits=Limits(timeout=600))
        >>> request.hosts, request.hyperparameter("trainer.max_epochs")
        (('algo-1', 'algo-2'), '2')
        >>> folder.cleanup()

    ``outcome = rehearse(request)`` then runs the job.
    """
    sdk, distribution = as_member(Sdk, sdk, "sdk"), as_member(Distribution, distribution, "distribution")
    _check_processes(sdk, distribution, processes)
    groups = _parse_groups(instance_groups, instance_type) if instance_groups else (_one_group(hosts, instance_type),)
    if instance_groups and hosts is not None:
        raise RehearsalError("--hosts and --instance-groups exclude each other.", hint="The groups say how many hosts.")
    if distribution_groups and not instance_groups:
        raise RehearsalError("--distribution-groups needs --instance-groups.", hint="Define the groups there.")
    for name in distribution_groups:
        if name not in [group.name for group in groups]:
            known = ", ".join(group.name for group in groups)
            raise RehearsalError(
                f"--distribution-groups names {name!r}, which is not one of --instance-groups.", hint=f"Known: {known}"
            )
    source = Path(source_dir).resolve()
    if not (source / entry_point).is_file():
        raise RehearsalError(
            f"The entry point {entry_point!r} is not a file in {source}.",
            hint="Its path is relative to --source-dir.",
        )
    if command is not None and sdk is Sdk.V3:
        raise RehearsalError(
            "--entrypoint and --sdk v3 exclude each other: ModelTrainer sends its own.", hint="Use --sdk v2."
        )
    check_limits(limits or Limits())
    values: Dict[str, Any] = dict(hyperparameters or {})
    if sdk is Sdk.V2:
        values.update(
            framework_hyperparameters(
                distribution,
                # With groups an estimator has no instance_type, and the SDK then sends none.
                instance_type=None if instance_groups else instance_type,
                processes=processes,
                mpi_options=mpi_options,
                groups=distribution_groups,
            ),
            sagemaker_program=entry_point,
            sagemaker_container_log_level=20,
            sagemaker_job_name=job_name,
            sagemaker_region="us-east-1",
        )
    return RehearsalRequest(
        job_name=job_name,
        sdk=sdk,
        distribution=distribution,
        groups=groups,
        hyperparameters=tuple(encode_hyperparameters(values, sdk).items()),
        entry_point=entry_point,
        code=source,
        channels=local_channels(channels or {}),
        environment=tuple((environment or {}).items()),
        checkpoint_dir=resolved(checkpoint_dir),
        output_dir=resolved(output_dir),
        limits=limits or Limits(),
        link=link or NetworkLink(),
        local_mode_files=local_mode_files,
        processes=processes,
        mpi_options=mpi_options,
        install_requirements=install_requirements,
        command=MODEL_TRAINER_COMMAND if sdk is Sdk.V3 else tuple(command or TOOLKIT_COMMAND),
        isolation=as_isolation(isolation),
        keep=keep,
    )


def as_member(kind: Type[_Member], value: Union[str, _Member], name: str) -> _Member:
    """Return the member of an enumeration by its value.

    Raises:
        RehearsalError: There is none; the message names the argument and its choices.
    """
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(member.value for member in kind)
        raise RehearsalError(f"{name} {value!r} is not known.", hint=f"Use one of: {choices}") from None


def as_isolation(value: Union[str, Isolation, None]) -> Optional[Isolation]:
    """Return the isolation by its value; ``None`` and ``"auto"`` leave it open."""
    return None if value in (None, "auto") else as_member(Isolation, str(value), "isolation")


def resolved(path: Optional[PathLike]) -> Optional[Path]:
    """Return an absolute path, since the job starts in another folder."""
    return Path(path).resolve() if path else None


def local_channels(paths: Mapping[str, PathLike]) -> Tuple[InputChannel, ...]:
    """Return the input channels for these local folders and files.

    Raises:
        RehearsalError: A name is not one for a channel, or a path does not exist.
    """
    for name, path in paths.items():
        if not _CHANNEL_NAME.fullmatch(name):
            raise RehearsalError(
                f"--channel {name!r} is not a channel name.", hint="Use letters, digits, '.', '-', '_'."
            )
        if not Path(path).exists():
            raise RehearsalError(f"--channel {name}: {path} does not exist.", hint="Give a local folder or file.")
    return tuple(InputChannel(name, str(Path(path).resolve())) for name, path in paths.items())


def check_limits(limits: Limits) -> None:
    """Check that at most one thing ends the job early, and that this system can do it.

    Raises:
        RehearsalError: It cannot be done.
    """
    stop = limits.stop_after is not None or bool(limits.stop_at)
    if sum((limits.interrupt_after is not None, limits.stop_after is not None, bool(limits.stop_at))) > 1:
        raise RehearsalError(
            "--stop-after, --stop-at and --spot-interrupt-after exclude each other.", hint="Give one of them."
        )
    if stop and not sys.platform.startswith("linux"):
        raise RehearsalError(
            f"--stop-after and --stop-at need Linux: {sys.platform} does not show which signals a process handles.",
            hint="Run the rehearsal on Linux, in a container for example.",
        )


def _check_processes(sdk: Sdk, distribution: Distribution, processes: Optional[int]) -> None:
    if sdk is Sdk.V3 and distribution not in V3_DISTRIBUTIONS:
        raise RehearsalError(
            f"SDK v3 has no launcher for {distribution}.",
            hint="Use --sdk v2, or one of: " + ", ".join(map(str, V3_DISTRIBUTIONS)),
        )
    if processes is not None and processes < 1:
        raise RehearsalError(f"--processes {processes} must be 1 or more.", hint="Leave it out for the GPUs' number.")
    if distribution is Distribution.NONE and (processes or 1) > 1:
        raise RehearsalError(
            f"--processes {processes} has no meaning with --distribution none: each host runs one.",
            hint="Let Lightning start them (--trainer.devices N after the entry point), or name a distribution.",
        )


def _one_group(hosts: Optional[int], instance_type: str) -> HostGroup:
    count = 1 if hosts is None else hosts
    if not 1 <= count <= _MAX_HOSTS:
        raise RehearsalError(f"--hosts {count} must be from 1 to {_MAX_HOSTS}.", hint="It is the instance_count.")
    return HostGroup(HOMOGENEOUS_CLUSTER, instance_type, tuple(f"algo-{k}" for k in range(1, count + 1)))


def _parse_groups(text: str, default_type: str) -> Tuple[HostGroup, ...]:
    groups: List[HostGroup] = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part)
        if match is None or match.group("count") == "0":
            raise RehearsalError(
                f"--instance-groups: {part!r} is not NAME=N or NAME=N:TYPE.",
                hint="For example head=1:ml.m5.large,workers=2:ml.m5.xlarge",
            )
        if match.group("count"):
            taken = sum(len(group.hosts) for group in groups)
            hosts = tuple(f"algo-{taken + k}" for k in range(1, int(match.group("count")) + 1))
        else:
            hosts = tuple(match.group("hosts").split("+"))
        groups.append(HostGroup(match.group("name"), match.group("type") or default_type, hosts))
    names = [host for group in groups for host in group.hosts]
    if len(set(names)) != len(names) or len({group.name for group in groups}) != len(groups):
        raise RehearsalError(f"--instance-groups {text!r} names a host or a group twice.", hint="Each is in one place.")
    return tuple(groups)
