"""A :class:`RehearsalRequest` from the arguments of an estimator, by the body that ``lightning-sm launch`` makes.

Nothing is started or written here.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from lightning_sm.errors import RehearsalError
from lightning_sm.launch import Account, create_job_request, settings_of
from lightning_sm.rehearse._body import PathLike, as_member, request_from_body
from lightning_sm.rehearse._request import (
    TOOLKIT_COMMAND,
    Distribution,
    HostGroup,
    Isolation,
    Limits,
    NetworkLink,
    RehearsalRequest,
    Sdk,
)
from lightning_sm.rehearse._sdk import MODEL_TRAINER_COMMAND, V3_DISTRIBUTIONS

__all__ = ["create_request"]

_MAX_HOSTS = 100
_GROUP = re.compile(r"(?P<name>[\w-]+)=(?:(?P<count>\d+)|(?P<hosts>algo-\d+(?:\+algo-\d+)*))(?::(?P<type>[\w.\-]+))?")


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
    allow_files: Sequence[str] = (),
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
        allow_files: Files of ``source_dir`` that are packed although they are large or look like secrets.
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
        LaunchError: ``lightning-sm launch`` would refuse an argument.

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
    groups = _groups(hosts, instance_type, instance_groups, distribution_groups)
    settings: Dict[str, Any] = {
        # Nothing is sent, so image and role are never looked up.
        "image": "rehearsal/image",
        "role": "arn:aws:iam::000000000000:role/rehearsal",
        "instance_groups": [f"{each.name}={len(each.hosts)}:{each.instance_type}" for each in groups],
        "distribution": distribution.value,
        "distribution_groups": list(distribution_groups),
        "mpi_options": mpi_options,
        "source_dir": str(source),
        "entry_point": entry_point,
        "hyperparameters": dict(hyperparameters or {}),
        "environment": dict(environment or {}),
        "checkpoints": "none",
        "forward_sigterm": False,
    }
    if not groups:
        settings.update(instance_type=instance_type, instances=1 if hosts is None else hosts)
    body = create_job_request(settings_of(settings), Account("us-east-1", "rehearsal"), name=job_name).as_body()
    del body["OutputDataConfig"]
    body["AlgorithmSpecification"]["ContainerEntrypoint"] = list(command or TOOLKIT_COMMAND)
    if sdk is Sdk.V3:
        body["AlgorithmSpecification"]["ContainerEntrypoint"] = list(MODEL_TRAINER_COMMAND)
        body["HyperParameters"] = {
            # ModelTrainer leaves strings unchanged.
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in (hyperparameters or {}).items()
        }
    request = request_from_body(
        body,
        source_dir=source,
        # SDK v2 sends it for mpi only, and without it the toolkit counts GPUs, of which a laptop may have none.
        processes=processes if sdk is Sdk.V2 and distribution is not Distribution.NONE else None,
        channels=channels,
        allow_files=allow_files,
        checkpoint_dir=checkpoint_dir,
        output_dir=output_dir,
        install_requirements=install_requirements,
        local_mode_files=local_mode_files,
        limits=limits,
        link=link,
        isolation=isolation,
        keep=keep,
    )
    # What a body does not say, or not in these words: pytorchddp is sent as smdistributed.
    return dataclasses.replace(
        request,
        sdk=sdk,
        distribution=distribution,
        groups=groups or request.groups,
        entry_point=entry_point,
        processes=processes,
        mpi_options=mpi_options,
        image=None,
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


def _groups(
    hosts: Optional[int], instance_type: str, instance_groups: Optional[str], distribution_groups: Sequence[str]
) -> Tuple[HostGroup, ...]:
    """Return the instance groups, none for a homogeneous cluster."""
    if not instance_groups:
        if distribution_groups:
            raise RehearsalError("--distribution-groups needs --instance-groups.", hint="Define the groups there.")
        if hosts is not None and not 1 <= hosts <= _MAX_HOSTS:
            raise RehearsalError(f"--hosts {hosts} must be from 1 to {_MAX_HOSTS}.", hint="It is the instance_count.")
        return ()
    if hosts is not None:
        raise RehearsalError("--hosts and --instance-groups exclude each other.", hint="The groups say how many hosts.")
    groups = _parse_groups(instance_groups, instance_type)
    known = [group.name for group in groups]
    for name in distribution_groups:
        if name not in known:
            raise RehearsalError(
                f"--distribution-groups names {name!r}, which is not one of --instance-groups.",
                hint=f"Known: {', '.join(known)}",
            )
    return groups


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
