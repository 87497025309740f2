"""``LaunchSettings`` and ``TuningSettings``: what a job is asked to be, as options and in ``launch.yaml``."""

import argparse
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Literal, Mapping, Optional, Union

from jsonargparse import ArgumentParser

from lightning_sm._options import add_options, new_parser, parse

__all__ = [
    "Distribution",
    "LaunchSettings",
    "TuningSettings",
    "add_settings",
    "settings_in",
    "settings_of",
    "tuning_settings_of",
]

#: The launcher of a job: the keys of the argument ``distribution`` of SageMaker's SDK, and ``none``.
Distribution = Literal["none", "torch_distributed", "mpi", "smp", "smdistributed", "pytorchddp"]

# The first setting of each group of `--help`, and the title of the group.
_GROUPS = {
    "image": "what a first job needs",
    "source_dir": "the program",
    "channels": "data and results",
    "instances": "instances and processes",
    "name": "name and place",
    "objective": "the search",
}


@dataclass
class LaunchSettings:
    """What ``lightning-sm launch`` takes, as options (``--max-run 2h``) or in ``launch.yaml`` (``max_run: 2h``).

    Args:
        image: The training image: a short name such as ``pytorch-2.8-gpu``, or the URI of any image.
        role: The execution role of the job, as an ARN.
        instance_type: The instance type, such as ``ml.g5.xlarge``.
        source_dir: The folder with the program, its config files and ``requirements.txt``.
        entry_point: The program in it.
        hyperparameters: Hyperparameters, beside those that the arguments of the command mean.
        environment: Environment variables of the container. ``LIGHTNING_SM_AUTO`` is ``1`` unless it is set: with it a
            program that does not import ``lightning_sm`` takes its world and directories from the job.
        allow_files: Files that are uploaded although they are large or look like secrets.
        channels: The input channels: an address (``s3://``, ``fsx://``, ``efs://``) or a local folder for each name, or
            a mapping with ``uri``, ``mode``, ``sharded`` and ``content_type``.
        checkpoints: Where checkpoints are synchronised with S3: ``auto`` for a prefix of the job's own in the bucket,
            ``none``, or an address.
        from_checkpoint: The checkpoints of another job (``s3://…/checkpoints``), from which this job goes on. They are
            copied to this job's own prefix.
        metrics: Names of the metrics that SageMaker reads from the job's log.
        instances: The number of instances.
        instance_groups: The groups of a heterogeneous cluster, each as ``NAME=COUNT:TYPE``.
        distribution: How processes are started; ``none`` is one per host, and Lightning starts the others. ``smp`` is
            ``mpi`` with AWS's model parallel library 1.x, whose parameters are the hyperparameter ``mp_parameters``.
        distribution_groups: The groups that are a part of the distribution; all by default.
        processes_per_host: Processes per host, for ``mpi`` and ``smp``; by default one for each GPU.
        mpi_options: More options of ``mpirun``, for ``mpi``, ``smp``, ``smdistributed`` and ``pytorchddp``.
        volume_size: The size of each instance's volume in GB; 0 where the instances have disks of their own.
        spot: Whether to use spot instances.
        max_run: The time limit of the job, such as ``24h``.
        forward_sigterm: Whether the container is started by a script that forwards SIGTERM to the training.
        name: The name of the job; by default the name of the source folder and the time.
        region: The AWS region; by default that of the AWS configuration.
        bucket: The bucket for source, checkpoints and output; by default ``sagemaker-REGION-ACCOUNT``.
        set: Any other field of the request (CreateTrainingJob), as ``ResourceConfig.KeepAlivePeriodInSeconds=600``.
            Mappings are merged, and ``null`` removes a field.

    Example::

        >>> settings = settings_of({"image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge", "max_run": "2h"})
        >>> settings.instance_type, settings.instances, settings.checkpoints
        ('ml.g5.xlarge', 1, 'auto')
    """

    image: str = ""
    role: str = ""
    instance_type: str = ""
    source_dir: str = "."
    entry_point: str = "train.py"
    hyperparameters: Dict[str, Any] = field(default_factory=dict)
    environment: Dict[str, Any] = field(default_factory=dict)
    allow_files: List[str] = field(default_factory=list)
    channels: Dict[str, Any] = field(default_factory=dict)
    checkpoints: str = "auto"
    from_checkpoint: Optional[str] = None
    metrics: List[str] = field(default_factory=list)
    instances: int = 1
    instance_groups: List[str] = field(default_factory=list)
    distribution: Distribution = "none"
    distribution_groups: List[str] = field(default_factory=list)
    processes_per_host: Optional[int] = None
    mpi_options: str = ""
    volume_size: int = 30
    spot: bool = False
    max_run: Union[int, str] = "24h"
    forward_sigterm: bool = True
    name: Optional[str] = None
    region: Optional[str] = None
    bucket: Optional[str] = None
    set: Dict[str, Any] = field(default_factory=dict)


@dataclass
class TuningSettings:
    """What a tuning job searches, as options of ``lightning-sm tune`` or in ``launch.yaml`` below ``tuning``.

    Args:
        objective: The metric that is optimized, by the name under which the model logs it.
        direction: Whether to ``maximize`` or to ``minimize`` it.
        ranges: The values of each hyperparameter: a list (``[adam, sgd]``), or a mapping with ``min``, ``max``,
            ``scale`` (``auto``, ``linear``, ``log`` or ``reverse_log``) and ``type`` (``integer`` or ``continuous``;
            it may be left out where an end is no integer).
        max_jobs: How many training jobs are started at most; a grid has one for each combination.
        max_parallel_jobs: How many of them run at a time.
        strategy: The strategy of the search.
    """

    objective: str = ""
    direction: Optional[Literal["maximize", "minimize"]] = None
    ranges: Dict[str, Any] = field(default_factory=dict)
    max_jobs: Optional[int] = None
    max_parallel_jobs: int = 1
    strategy: Literal["Bayesian", "Random", "Hyperband", "Grid"] = "Bayesian"


def add_settings(parser: ArgumentParser, *, tunes: bool = False) -> None:
    """Add an option for each setting, in groups.

    Args:
        parser: The parser.
        tunes: Whether those of a search are options, too; otherwise they may stand in the file.
    """
    add_options(parser, LaunchSettings, groups=_GROUPS)
    if tunes:
        add_options(parser, TuningSettings, groups=_GROUPS, prefix="tuning.")
    else:
        parser.add_argument("--tuning", type=Any, help=argparse.SUPPRESS)


def settings_in(found: Mapping[str, Any]) -> LaunchSettings:
    """Return the settings among the values that a parser has read."""
    return LaunchSettings(**{each.name: found[each.name] for each in fields(LaunchSettings)})


def settings_of(given: Mapping[str, Any]) -> LaunchSettings:
    """Return the settings of a mapping, such as the content of ``launch.yaml``.

    Args:
        given: The settings by their names.

    Raises:
        HyperparameterError: A name is unknown, or a value has another type.
    """
    parser = new_parser("lightning-sm launch", "")
    add_settings(parser)
    return settings_in(parse(parser, given))


def tuning_settings_of(given: Mapping[str, Any]) -> TuningSettings:
    """Return the settings of a search from a mapping, such as ``tuning`` in ``launch.yaml``.

    Raises:
        HyperparameterError: A name is unknown, or a value has another type.
    """
    parser = new_parser("lightning-sm tune", "")
    add_options(parser, TuningSettings)
    return TuningSettings(**parse(parser, given))
