"""Reads the fields of a ``TrainingJob`` from ``/opt/ml/input/config`` and from SageMaker's environment variables."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.in_job import config_directory, is_in_job
from lightning_sm._sagemaker.json_input import (
    expect_mapping,
    expect_names,
    read_count,
    read_json_file,
    read_json_variable,
)
from lightning_sm.errors import JobConfigError, RoutingError

__all__ = ["Channel", "InstanceGroup", "read_job_fields"]


@dataclass(frozen=True)
class InstanceGroup:
    """A group of instances of one type: an entry of ``instance_groups`` in ``resourceconfig.json``.

    The service writes that file on each host. The SDK's local mode writes no groups.

    Args:
        name: ``instance_group_name``, such as ``homogeneousCluster``, the only group of most jobs.
        instance_type: ``instance_type``, such as ``ml.p4d.24xlarge``; ``None`` if unknown.
        hosts: ``hosts``, in the order of the file.

    Example::

        >>> InstanceGroup("gpu", "ml.p4d.24xlarge", ("algo-1", "algo-2")).hosts
        ('algo-1', 'algo-2')
    """

    name: str
    instance_type: Optional[str]
    hosts: Tuple[str, ...]


@dataclass(frozen=True)
class Channel:
    """An input channel of the job: an entry of ``inputdataconfig.json``.

    The service writes that file on each host of a job with input channels. Elsewhere the variable ``SM_CHANNELS`` lists
    the names of the channels.

    Args:
        name: The name of the channel.
        path: The directory that holds its files: the variable ``SM_CHANNEL_<NAME>``, which the training toolkit sets,
            else ``input/data/<name>`` below the base directory.
        input_mode: ``File``, ``FastFile`` or ``Pipe``; ``None`` if only ``SM_CHANNELS`` names the channel.
        is_sharded: Whether SageMaker gives each host other objects (``S3DistributionType`` is ``ShardedByS3Key``).

    Example::

        >>> Channel("training", "/opt/ml/input/data/training", "FastFile").path
        '/opt/ml/input/data/training'
    """

    name: str
    path: str
    input_mode: Optional[str] = None
    is_sharded: bool = False

    def validate(self) -> None:
        """Check that the channel holds files.

        Raises:
            RoutingError: It is a pipe, missing, empty or not readable.
        """
        where = f"The channel {self.name!r} at {self.path}"
        try:
            is_pipe = self.input_mode == "Pipe" or Path(self.path).is_fifo() or Path(f"{self.path}_0").is_fifo()
            empty = os.path.isdir(self.path) and not os.listdir(self.path)
        except OSError as error:
            raise RoutingError(f"{where} cannot be read ({error}).", hint="Check its permissions.") from error
        if is_pipe:
            raise RoutingError(
                f"{where} is a pipe, which no data module reads.",
                hint="Set the channel's input mode to File or FastFile.",
            )
        if empty or not os.path.exists(self.path):
            raise RoutingError(
                f"{where} {'is empty' if empty else 'does not exist'}.",
                hint="Check the channel's S3 prefix: it must name at least one object.",
            )


# Fields of resourceconfig.json with the variables that hold the same.
_TEXTS = {
    "current_group_name": "SM_CURRENT_INSTANCE_GROUP",
    "current_instance_type": "SM_CURRENT_INSTANCE_TYPE",
    "network_interface_name": "SM_NETWORK_INTERFACE_NAME",
}


class _Reader:
    """Reads this host's files and variables, and records the source of each field."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # A plain dict, because os.environ raises for a name that the system cannot encode.
        self.environ = dict(environ)
        self.sources: Dict[str, str] = {}
        self.base_dir = environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
        self.config_dir = config_directory(environ)

    def directory(self, field: str, variable: str, *below_base: str) -> str:
        if self.environ.get(variable):
            self.sources[field] = variable
            return self.environ[variable]
        self.sources[field] = "SAGEMAKER_BASE_DIR" if self.environ.get("SAGEMAKER_BASE_DIR") else "SageMaker's layout"
        return os.path.join(self.base_dir, *below_base)

    def text(self, field: str, value: Any, source: str, variable: str) -> Optional[str]:
        """Return a string from ``resourceconfig.json``, else from a variable."""
        if value is not None and not isinstance(value, str):
            raise JobConfigError(f"{field} in {source} should be a string, but is {value!r}.")
        for where, found in ((source, value), (variable, self.environ.get(variable))):
            if found:
                self.sources[field] = where
                return found
        return None

    def file(self, name: str) -> Tuple[Optional[Any], str]:
        path = os.path.join(self.config_dir, name)
        return read_json_file(path), path


def read_job_fields(environ: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    """Return the fields of a ``TrainingJob`` by name; none of them outside a training container.

    Args:
        environ: The environment variables instead of ``os.environ``.

    Raises:
        JobConfigError: A file or variable is malformed, or two of them contradict each other.
    """
    reader = _Reader(os.environ if environ is None else environ)
    if not is_in_job(reader.environ):
        return {}
    resources, path = reader.file("resourceconfig.json")
    resources = {} if resources is None else expect_mapping(resources, path)
    hosts = _read_hosts(reader, resources, path)
    current_host = reader.text("current_host", resources.get("current_host"), path, "SM_CURRENT_HOST")
    if current_host is None or current_host not in hosts:
        raise JobConfigError(
            f"The current host is {current_host!r} by {reader.sources.get('current_host', 'no file or variable')}, "
            f"which is not among the hosts {list(hosts)} by {reader.sources['hosts']}.",
            hint="SageMaker sets both; unset SM_CURRENT_HOST and SM_HOSTS if the script or a shell sets them.",
        )
    channels = _read_channels(reader)
    # The channel in which SDK v3 brings its container drivers.
    hyperparameters = _read_hyperparameters(reader, sdk_v3="sm_drivers" in channels)
    output_data_dir = reader.directory("output_data_dir", "SM_OUTPUT_DATA_DIR", "output", "data")
    return dict(
        in_container=True,
        name=_read_name(reader, hyperparameters),
        current_host=current_host,
        hosts=hosts,
        instance_groups=_read_groups(reader, resources, path),
        distribution_groups=_read_distribution_groups(reader, hyperparameters),
        **{name: reader.text(name, resources.get(name), path, variable) for name, variable in _TEXTS.items()},
        num_gpus=_read_num_gpus(reader),
        num_neurons=read_count(reader.environ, "SM_NUM_NEURONS"),
        channels=channels,
        hyperparameters=hyperparameters,
        base_dir=reader.base_dir,
        model_dir=reader.directory("model_dir", "SM_MODEL_DIR", "model"),
        output_data_dir=output_data_dir,
        failure_file=os.path.join(reader.directory("failure_file", "SM_OUTPUT_DIR", "output"), "failure"),
        checkpoint_dir=_read_checkpoint_dir(reader, output_data_dir),
        tensorboard_dir=_read_local_path(reader, "tensorboardoutputconfig.json", "tensorboard_dir"),
        sources=reader.sources,
    )


def _read_num_gpus(reader: _Reader) -> Optional[int]:
    """The GPUs that processes of this host see. The toolkit counts all that ``nvidia-smi`` lists."""
    count, visible = read_count(reader.environ, "SM_NUM_GPUS"), reader.environ.get("CUDA_VISIBLE_DEVICES")
    if count is None:
        return None
    seen = count if visible is None else sum(each.strip() not in ("", "-1") for each in visible.split(","))
    reader.sources["num_gpus"] = "SM_NUM_GPUS" if count <= seen else "CUDA_VISIBLE_DEVICES"
    return min(count, seen)


def _read_name(reader: _Reader, hyperparameters: Hyperparameters) -> Optional[str]:
    found = [(name, reader.environ.get(name)) for name in ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN")]
    # SDK v2 creates the hyperparameters of a tuning job once, so that all its training jobs have the same name there.
    if "_tuning_objective_metric" not in hyperparameters.reserved:
        found += [
            ("sagemaker_job_name", hyperparameters.reserved.get("sagemaker_job_name")),
            ("SAGEMAKER_JOB_NAME", reader.environ.get("SAGEMAKER_JOB_NAME")),
        ]
    for source, value in found:
        name = value.rpartition("/")[2].strip() if isinstance(value, str) else ""
        if name:
            reader.sources["name"] = source
            return name
    return None


def _read_hosts(reader: _Reader, resources: Dict[str, Any], path: str) -> Tuple[str, ...]:
    hosts, source = resources.get("hosts"), f"hosts in {path}"
    if hosts is None:
        hosts, source = read_json_variable(reader.environ, "SM_HOSTS"), "SM_HOSTS"
    reader.sources["hosts"] = source
    return tuple(expect_names(hosts, source))


def _read_groups(reader: _Reader, resources: Dict[str, Any], path: str) -> Tuple[InstanceGroup, ...]:
    groups = resources.get("instance_groups")
    if groups is None:
        return ()
    where = f"instance_groups in {path}"
    if not isinstance(groups, list):
        raise JobConfigError(f"{where} should be a JSON list, but is {groups!r}.")
    reader.sources["instance_groups"] = path
    return tuple(_read_group(expect_mapping(group, f"An entry of {where}"), where) for group in groups)


def _read_group(entry: Dict[str, Any], where: str) -> InstanceGroup:
    name, instance_type = entry.get("instance_group_name"), entry.get("instance_type")
    if not isinstance(name, str) or not isinstance(instance_type, (str, type(None))):
        raise JobConfigError(f"An entry of {where} has no valid instance_group_name and instance_type: {entry!r}.")
    return InstanceGroup(name, instance_type, tuple(expect_names(entry.get("hosts"), f"hosts of {name!r} in {where}")))


def _read_hyperparameters(reader: _Reader, *, sdk_v3: bool) -> Hyperparameters:
    content, path = reader.file("hyperparameters.json")
    reader.sources["hyperparameters"] = "SM_HPS" if content is None else path
    if content is not None:
        return Hyperparameters.from_file(content, path, sdk_v3=sdk_v3)
    framework = read_json_variable(reader.environ, "SM_FRAMEWORK_PARAMS", {})
    return Hyperparameters.from_variables(read_json_variable(reader.environ, "SM_HPS", {}), framework)


def _read_distribution_groups(reader: _Reader, hyperparameters: Hyperparameters) -> Tuple[str, ...]:
    name = "sagemaker_distribution_instance_groups"
    groups = hyperparameters.reserved.get(name)
    if groups is None:
        return ()
    reader.sources["distribution_groups"] = name
    return tuple(expect_names(groups, f"The hyperparameter {name}"))


def _read_channels(reader: _Reader) -> Dict[str, Channel]:
    data_dir = os.path.join(reader.directory("input_dir", "SM_INPUT_DIR", "input"), "data")
    content, path = reader.file("inputdataconfig.json")
    if content is not None:
        reader.sources["channels"] = path
        entries = {
            name: expect_mapping(entry, f"Channel {name!r} in {path}")
            for name, entry in expect_mapping(content, path).items()
        }
    else:
        reader.sources["channels"] = "SM_CHANNELS"
        listed = read_json_variable(reader.environ, "SM_CHANNELS", [])
        entries = {name: {} for name in expect_names(listed, "SM_CHANNELS")}
    return {
        name: Channel(
            name,
            reader.environ.get(f"SM_CHANNEL_{name.upper()}") or os.path.join(data_dir, name),
            entry.get("TrainingInputMode"),
            entry.get("S3DistributionType") == "ShardedByS3Key",
        )
        for name, entry in entries.items()
    }


def _read_local_path(reader: _Reader, name: str, field: str) -> Optional[str]:
    """Return ``LocalPath`` of a file, which is a directory that the service uploads while the job runs."""
    content, path = reader.file(name)
    local_path = None if content is None else expect_mapping(content, path).get("LocalPath")
    if local_path is None:
        return None
    if not (isinstance(local_path, str) and os.path.isabs(local_path)):
        raise JobConfigError(f"LocalPath in {path} should be an absolute path, but is {local_path!r}.")
    reader.sources[field] = path
    return local_path


def _read_checkpoint_dir(reader: _Reader, output_data_dir: str) -> str:
    local_path = _read_local_path(reader, "checkpointconfig.json", "checkpoint_dir")
    if local_path is not None:
        return local_path
    default = os.path.join(reader.base_dir, "checkpoints")
    if os.path.isdir(default):
        reader.sources["checkpoint_dir"] = default
        return default
    reader.sources["checkpoint_dir"] = reader.sources["output_data_dir"]
    return os.path.join(output_data_dir, "checkpoints")
