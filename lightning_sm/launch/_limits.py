"""What the API would refuse: botocore's model of it, and the maxima that AWS documents and the model does not have."""

import math
import re
from typing import Any, Iterator

from lightning_sm.errors import LaunchError
from lightning_sm.launch._request import JobRequest

__all__ = ["check_limits"]

_UNITS = {"string": " characters", "list": " entries", "map": " entries"}
# Limits that botocore's model does not have, by the names of its shapes: the MaxRuntimeInSeconds of a tuning job is of
# another shape, with other limits.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html, API_ResourceConfig.html;
# https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html: those that cannot be raised
_DOCUMENTED = {
    "MaxRuntimeInSeconds": {"max": 28 * 86_400},
    "TrainingInstanceCount": {"min": 1},
    "MaxParallelTrainingJobs": {"max": 100},
    "MaxNumberOfTrainingJobs": {"max": 10_000},
}


def check_limits(request: JobRequest) -> None:
    """Raise if a request breaks types, limits, patterns or required fields of the API.

    They are those of botocore's model of the service, and maxima that AWS documents and the model does not have.

    Args:
        request: The request.

    Raises:
        LaunchError: It does.
    """
    import botocore.session
    from botocore.validate import ParamValidator

    service, operation = botocore.session.get_session().get_service_model("sagemaker"), f"Create{request.kind}"
    shape, body = service.operation_model(operation).input_shape, request.as_body()
    report = ParamValidator().validate(body, shape)
    problems = report.generate_report().splitlines() if report.has_errors() else list(_violations(body, shape, ""))
    stop = body.get("TrainingJobDefinition", body).get("StoppingCondition", {})
    if not problems and stop.get("MaxWaitTimeInSeconds", math.inf) < stop.get("MaxRuntimeInSeconds", 0):
        problems = ["StoppingCondition.MaxWaitTimeInSeconds is less than MaxRuntimeInSeconds"]
    if problems:
        raise LaunchError(
            f"The request breaks the limits of {operation}: {'; '.join(problems[:5])}.",
            hint="Change these settings.",
        )


def _violations(value: Any, shape: Any, at: str) -> Iterator[str]:
    """What botocore's own validation ignores: maxima, patterns and enumerations of its model."""
    limits = {**shape.metadata, **_DOCUMENTED.get(shape.name, {})}
    size = value if isinstance(value, (int, float)) else len(value)
    if size > limits.get("max", size):
        yield f"{at} has {size}{_UNITS.get(shape.type_name, '')}, more than {limits['max']}"
    if size < limits.get("min", size):
        yield f"{at} has {size}{_UNITS.get(shape.type_name, '')}, less than {limits['min']}"
    if shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            yield f"{at} is {value!r}, which is none that the API of the installed botocore knows"
        elif not _matches(limits.get("pattern", ""), value):
            yield f"{at} is {value!r}, which is not of the form {limits['pattern']}"
    elif shape.type_name == "structure":
        for name, inner in value.items():
            yield from _violations(inner, shape.members[name], f"{at}.{name}" if at else name)
    elif shape.type_name == "list":
        for index, inner in enumerate(value):
            yield from _violations(inner, shape.member, f"{at}[{index}]")
    elif shape.type_name == "map":
        for name, inner in value.items():
            yield from _violations(name, shape.key, f"{at} key {name!r}")
            yield from _violations(inner, shape.value, f"{at}[{name!r}]")


def _matches(pattern: str, value: str) -> bool:
    try:
        # The service's expressions are Java's, whose classes such as \\p{L} Python does not know.
        return not pattern or re.fullmatch(pattern, value) is not None
    except re.error:
        return True
