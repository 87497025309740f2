"""What is refused before anything is sent: requests that the service or the container could not run."""

import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._package import refuse_no_folder
from lightning_sm.launch._request import JobRequest
from lightning_sm.launch._settings import flag_of

__all__ = ["check_job", "check_limits", "check_request", "readable_secrets"]

# src/sagemaker/fw_utils.py of aws/sagemaker-python-sdk 2.257, SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES
_SMDDP_INSTANCES = ("ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/\S+")
_MPI = ("mpi", "smdistributed", "pytorchddp")
_READABLE = ("HyperParameters", "StaticHyperParameters", "Environment")
# Limits of fields that botocore's model does not have.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html, API_ResourceConfig.html
_DOCUMENTED = {
    "StoppingCondition.MaxRuntimeInSeconds": {"max": 28 * 86_400},
    "InstanceCount": {"min": 1},
    "VolumeSizeInGB": {"min": 1},
}
_LINE = re.compile(r"^\s*([A-Za-z0-9][\w.\-]*)", re.MULTILINE)


def readable_secrets(body: Mapping[str, Any]) -> List[str]:
    """Return the names of variables and hyperparameters of a request whose values look like secrets.

    Values that read as secrets are found by the patterns that redact failure reasons, together with their names.
    """
    from lightning_sm._failure import redact_patterns

    job = body.get("TrainingJobDefinition", body)
    values = {name: text for key in _READABLE for name, text in job.get(key, {}).items()}
    lines = {name: f"{name}={value}" for name, value in values.items()}
    return sorted(name for name, line in lines.items() if redact_patterns(line) != line)


def check_request(request: JobRequest) -> None:
    """Raise if the job could not run as requested.

    Limits, patterns and required fields of the API are those of botocore's model of the service.

    Args:
        request: The request.

    Raises:
        LaunchError: It could not. The message says what is set and what is possible.
    """
    check_job(request)
    _check_start(request)
    if request.settings.spot and "CheckpointConfig" not in request.as_body():
        raise LaunchError(
            "--spot without a place for checkpoints: an interruption loses the whole training.",
            hint="Leave --checkpoints at auto, or give an s3:// address.",
        )
    check_limits(request.as_body(), "CreateTrainingJob")


def check_job(request: JobRequest) -> None:
    """Raise if program, distribution and instances of a job do not fit together.

    Args:
        request: The request.

    Raises:
        LaunchError: They do not.
    """
    role = request.settings.role
    if _ROLE.fullmatch(role) is None:
        raise LaunchError(
            f"--role is {role!r}, which is no ARN of a role.",
            hint="Give the ARN of the job's execution role, arn:aws:iam:: with your account's number and :role/NAME; "
            "IAM's console shows it.",
        )
    _check_program(request)
    _check_distribution(request)
    _check_capacity(request)


def check_limits(body: Mapping[str, Any], operation: str) -> None:
    """Raise if a request breaks limits, patterns or required fields of the API.

    Args:
        body: The request.
        operation: The name of the API's operation, such as ``CreateTrainingJob``.

    Raises:
        LaunchError: It does.
    """
    problems = list(_violations(body, operation))
    if problems:
        raise LaunchError(
            f"The request breaks the limits of {operation}: {'; '.join(problems[:5])}.",
            hint="Change these settings; --dry-run prints the request.",
        )


def _check_start(request: JobRequest) -> None:
    start = request.settings.from_checkpoint
    if start is None:
        return
    if re.fullmatch(r"s3://[^/]+/\S+", start) is None or start.rstrip("/").endswith(".ckpt"):
        raise LaunchError(
            f"--from-checkpoint is {start!r}.",
            hint="Give the checkpoints of another job, s3://BUCKET/JOB/checkpoints. To start from one checkpoint, pass "
            "it to the script as --ckpt_path.",
        )
    if "CheckpointConfig" not in request.as_body():
        raise LaunchError(
            "--from-checkpoint without a place for checkpoints, to which those of the other job are copied.",
            hint="Leave --checkpoints at auto, or give an s3:// address.",
        )


def _check_program(request: JobRequest) -> None:
    settings = request.settings
    parts = Path(settings.entry_point).parts
    # process.validate_entry_point of sagemaker-training 5.1.4
    if settings.entry_point.startswith(("/", "-")) or ".." in parts or re.search(r"\s", settings.entry_point):
        raise LaunchError(
            f"--entry-point {settings.entry_point!r} is refused by SageMaker's toolkit.",
            hint="Name a file below --source-dir by its path in it, without blanks.",
        )
    refuse_no_folder(Path(settings.source_dir))
    program = Path(settings.source_dir, settings.entry_point)
    if not program.is_file():
        raise LaunchError(
            f"--entry-point {settings.entry_point} is not in --source-dir {Path(settings.source_dir).resolve()}.",
            hint="Name a file in that folder.",
        )
    if settings.distribution == "torch_distributed" and program.suffix != ".py":
        raise LaunchError(
            f"--distribution torch_distributed cannot start {settings.entry_point}: torchrun takes a .py file.",
            hint="Name a .py file, or use --distribution none.",
        )
    if settings.distribution == "torch_distributed" and Path(settings.source_dir, "setup.py").is_file():
        raise LaunchError(
            "A setup.py in --source-dir makes the toolkit take the folder for a package, which torchrun cannot start.",
            hint="Move the program and what it needs to a folder without setup.py.",
        )


def _check_distribution(request: JobRequest) -> None:
    settings, image = request.settings, request.image
    groups = {each.group for each in request.instances if each.group}
    unknown = sorted(set(settings.distribution_groups) - groups)
    if unknown:
        raise LaunchError(
            f"--distribution-group names {', '.join(unknown)}.",
            hint=f"There are the groups {', '.join(sorted(groups)) or '(none)'}.",
        )
    if len(settings.distribution_groups) > 1:
        raise LaunchError(
            f"--distribution-group names {len(settings.distribution_groups)} groups, and SageMaker takes one.",
            hint="The other groups run the program without the launcher.",
        )
    for name in ("processes_per_host", "mpi_options"):
        takes_it = settings.distribution in (_MPI if name == "mpi_options" else ("mpi",))
        if getattr(settings, name) and not takes_it:
            raise LaunchError(
                f"{flag_of(name)} has no effect with --distribution {settings.distribution}.",
                hint="Leave it out, or use --distribution mpi.",
            )
    if settings.distribution == "smdistributed":
        if image.has_smddp is False:
            raise LaunchError(
                f"--distribution smdistributed: {image.uri} has no SMDDP; the last image with it is pytorch-2.5-gpu.",
                hint="Use torch_distributed, or an older image.",
            )
        among = settings.distribution_groups
        started = [each for each in request.instances if not among or each.group in among]
        wrong = [each.type for each in started if each.type not in _SMDDP_INSTANCES]
        if wrong:
            raise LaunchError(
                f"--distribution smdistributed: SMDDP does not run on {', '.join(wrong)}.",
                hint=f"Use torch_distributed, or one of {', '.join(_SMDDP_INSTANCES)}.",
            )
    if settings.distribution in _MPI and not image.is_aws and not _requires(settings.source_dir, "mpi4py"):
        raise LaunchError(
            f"--distribution {settings.distribution} starts `python -m mpi4py`, which {image.uri} may not have.",
            hint="Add mpi4py to requirements.txt in the source folder.",
        )
    if image.processor == "cpu" and any(re.match(r"ml\.[pg]\d", each.type) for each in request.instances):
        raise LaunchError(
            f"The image {image.uri} is for CPUs, and {request.instances[0].type} has GPUs.", hint="Use the -gpu image."
        )


def _check_capacity(request: JobRequest) -> None:
    settings = request.settings
    if len(request.instances) > 1 and not request.instances[0].group and settings.spot:
        raise LaunchError(
            "Several --instance-type and --spot exclude each other.", hint="Choose one type, or leave --spot out."
        )
    if settings.keep_alive and settings.spot:
        raise LaunchError("--keep-alive and --spot exclude each other.", hint="Warm instances are on-demand ones.")
    if settings.mlflow_experiment and not settings.mlflow_arn:
        raise LaunchError("--mlflow-experiment has no effect without --mlflow-arn.", hint="Give the ARN, too.")
    if settings.network_isolation and request.image.is_aws and not _installs_offline(settings.source_dir):
        raise LaunchError(
            f"--network-isolation: {request.image.uri} has no Lightning, and pip finds none without a network.",
            hint="Use an image of your own with it, or wheels in the source folder and --no-index in requirements.txt.",
        )


def _requires(source_dir: str, package: str) -> bool:
    return package in {name.lower().replace("_", "-") for name in _LINE.findall(_requirements(source_dir))}


def _installs_offline(source_dir: str) -> bool:
    return "--no-index" in _requirements(source_dir)


def _requirements(source_dir: str) -> str:
    path = Path(source_dir, "requirements.txt")
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _violations(body: Mapping[str, Any], operation: str) -> Iterator[str]:
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    yield from _violations_of(body, model.operation_model(operation).input_shape, "")


def _violations_of(value: Any, shape: Any, at: str) -> Iterator[str]:
    """Compare a value with a shape of botocore's model, whose own validation ignores maxima and patterns."""
    documented = (more for field, more in _DOCUMENTED.items() if at.endswith(field))
    limits: Dict[str, Any] = {**shape.metadata, **next(documented, {})}
    if shape.type_name == "structure":
        for name in shape.required_members:
            if name not in value:
                yield f"{at or 'the request'} has no {name}"
        for name, inner in value.items():
            if name not in shape.members:
                yield f"{at or 'the request'} has no field {name} in the installed botocore (pip install -U boto3)"
            else:
                yield from _violations_of(inner, shape.members[name], f"{at}.{name}" if at else name)
        return
    size = value if shape.type_name in ("integer", "long") else len(value) if hasattr(value, "__len__") else None
    if size is not None:
        kind = "" if shape.type_name in ("integer", "long") else _UNITS.get(shape.type_name, "")
        if size < limits.get("min", size):
            yield f"{at} has {size}{kind}, less than {limits['min']}"
        if size > limits.get("max", size):
            yield f"{at} has {size}{kind}, more than {limits['max']}"
    if shape.type_name == "string":
        pattern = limits.get("pattern")
        if pattern is not None and not _matches(pattern, value):
            yield f"{at} is {value!r}, which is not of the form {pattern}"
        if shape.enum and value not in shape.enum:
            yield f"{at} is {value!r}, which is none that the API of the installed botocore knows"
    for name, inner, kind_shape in _children(value, shape, at):
        yield from _violations_of(inner, kind_shape, name)


_UNITS = {"string": " characters", "list": " entries", "map": " entries"}


def _children(value: Any, shape: Any, at: str) -> List[Tuple[str, Any, Any]]:
    if shape.type_name == "list":
        return [(f"{at}[{index}]", inner, shape.member) for index, inner in enumerate(value)]
    if shape.type_name == "map":
        keys = [(f"{at} key {name!r}", name, shape.key) for name in value]
        return [*keys, *((f"{at}[{name!r}]", inner, shape.value) for name, inner in value.items())]
    return []


def _matches(pattern: str, value: str) -> bool:
    try:
        # The service's expressions are Java's, whose classes such as \\p{L} Python does not know.
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True
