"""Looks at a project before its job is sent: ``launch`` and ``tune`` do, and :func:`check_project` for others."""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lightning_sm.errors import LaunchError, LightningSMError
from lightning_sm.launch._line import ReadLine, read_line
from lightning_sm.launch._project import Problem, problems_of_line, problems_of_source
from lightning_sm.launch._request import Account, JobRequest, create_job_request
from lightning_sm.launch._settings import LaunchSettings, local_channels, settings_of
from lightning_sm.launch._words import hyperparameters_of, read_file

__all__ = ["check_project", "definitions_of", "job_request_of", "line_of", "look_at"]

_FROM_MODEL = "auto"
# What is asked of a job where neither launch.yaml nor the caller says it.
_DEFAULTS: Mapping[str, Any] = {
    "image": "pytorch-2.8-gpu",
    "instance_type": "ml.g5.xlarge",
    "role": "arn:aws:iam::000000000000:role/none",
}


def check_project(source_dir: str, command: Sequence[str] = (), **given: Any) -> List[Problem]:
    """Return what is wrong with a project, as ``lightning-sm launch`` finds it, without AWS.

    Args:
        source_dir: The folder of the project. Settings stand in its ``launch.yaml``, if there is one.
        command: The words of the job, such as ``fit --config config.yaml``.
        **given: Settings that win, such as ``image`` and ``instance_type``.

    Raises:
        LaunchError: The settings or the folder cannot be read.
    """
    path = Path(source_dir, "launch.yaml")
    wanted = {**(read_file(str(path)) if path.is_file() else {}), **given}
    if wanted.get("instance_groups"):
        wanted.setdefault("instance_type", [])
    settings = settings_of({**_DEFAULTS, **wanted, "source_dir": source_dir})
    account = Account(settings.region or "us-east-1", "bucket")
    request = create_job_request(settings, account, name="check", hyperparameters=hyperparameters_of(command))
    found = _problems_of_files(request)
    if any(each.is_error for each in found):
        return found
    try:
        line = line_of(request)
    except LightningSMError as error:
        return [*found, Problem("command line", error.problem, error.hint or "")]
    return [*found, *problems_of_line(line, request.instances)]


def look_at(request: JobRequest) -> ReadLine:
    """Look at the project of a job: its files, and its command line as its own parser reads it.

    What may be wrong is said on stderr.

    Args:
        request: The request of the job.

    Raises:
        LaunchError: Something is wrong.
    """
    _report(_problems_of_files(request))
    line = line_of(request)
    if line.problem is not None:
        print(f"The command line was not checked: {line.problem}.", file=sys.stderr)
    _report(problems_of_line(line, request.instances))
    return line


def line_of(request: JobRequest) -> ReadLine:
    """Return what the project's parser reads.

    Raises:
        LaunchError: It refuses the line.
    """
    settings = request.settings
    return read_line(settings.source_dir, settings.entry_point, request.as_body(), local=local_channels(settings))


def job_request_of(
    settings: LaunchSettings,
    account: Account,
    hyperparameters: Mapping[str, Any],
    name: str,
    line: Optional[ReadLine] = None,
) -> JobRequest:
    """Return the request of a job with the metrics that the settings name.

    Args:
        settings: What the job is asked to be.
        account: Where it is sent.
        hyperparameters: More hyperparameters, which win over those of the settings.
        name: The name of the job.
        line: What its parser has read, which the metric ``auto`` needs.

    Raises:
        LaunchError: The settings contradict each other, or the model's metrics cannot be read.
        MetricDefinitionError: SageMaker does not accept the name of a metric.
    """
    definitions = definitions_of(settings.metrics, line)
    return create_job_request(
        settings, account, name=name, hyperparameters=hyperparameters, metric_definitions=definitions
    )


def definitions_of(metrics: Sequence[str], line: Optional[ReadLine]) -> List[Dict[str, str]]:
    """Return metric definitions; ``auto`` stands for the metrics of the model, and for none before the line is read.

    Raises:
        LaunchError: The model's metrics cannot be read.
        MetricDefinitionError: SageMaker does not accept a name.
    """
    from lightning_sm._observe.metrics import metric_definitions

    names = [name for name in metrics if name != _FROM_MODEL]
    if _FROM_MODEL in metrics and line is not None:
        if not line.logged:
            reason = line.problem or "its parser names no model"
            raise LaunchError(
                f"--metric auto: the metrics of the model cannot be read: {reason}.",
                hint="Install what the project imports, or name the metrics: --metric val_loss.",
            )
        names += [*line.monitored, *line.logged]
    return metric_definitions(list(dict.fromkeys(names))) if names else []


def _problems_of_files(request: JobRequest) -> List[Problem]:
    body = request.as_body()
    given = json.loads(body["HyperParameters"].get("config", "[]"))
    configs = [str(path) for path in (given if isinstance(given, list) else [given])]
    channels = [each["ChannelName"] for each in body.get("InputDataConfig", ())]
    return problems_of_source(request.settings.source_dir, request.image, configs, channels)


def _report(problems: Sequence[Problem]) -> None:
    for each in problems:
        if not each.is_error:
            print(each, file=sys.stderr)
    errors = [each for each in problems if each.is_error]
    if errors:
        raise LaunchError(
            " ".join(each.text for each in errors), hint=f"{errors[0].hint} --no-check sends it as it is."
        )
