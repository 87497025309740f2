"""The commands ``launch`` and ``tune``, and what they find wrong with a project."""

import json
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from jsonargparse import ArgumentParser

from lightning_sm._doctor import Finding
from lightning_sm._options import parse
from lightning_sm.errors import LaunchError
from lightning_sm.launch._arguments import command_parser, hyperparameters_of, read_request, split_command
from lightning_sm.launch._limits import check_limits
from lightning_sm.launch._package import pack_source
from lightning_sm.launch._project import problems_of, readable_secrets
from lightning_sm.launch._request import (
    ARCHIVE,
    Account,
    JobRequest,
    create_job_request,
    default_name,
    local_channels,
)
from lightning_sm.launch._send import account_of, api_errors, send, session_in
from lightning_sm.launch._settings import LaunchSettings, TuningSettings, settings_in
from lightning_sm.launch._tuning import create_tuning_request, draw
from lightning_sm.launch._upload import address_of_content, bucket_and_key, objects_below
from lightning_sm.launch._watch import follow

__all__ = ["check_arguments", "check_project", "main", "tune"]

# With the body of a request only these have a meaning: what is uploaded or copied, where it is sent, what is shown.
_WITH_BODY = (
    "request", "name", "region", "source_dir", "allow_files", "channels", "from_checkpoint", "dry_run", "wait", "json",
)  # fmt: skip


def main(args: Sequence[str]) -> int:
    """Run ``lightning-sm launch`` and return its exit status.

    Args:
        args: The arguments behind ``lightning-sm launch``.

    Raises:
        LightningSMError: The job cannot be sent; the command shows it as one line, and ends with 1.
    """
    return _run("launch", args)


def tune(args: Sequence[str]) -> int:
    """Run ``lightning-sm tune``, as :func:`main` runs ``lightning-sm launch``."""
    return _run("tune", args)


def check_arguments(args: Sequence[str]) -> Tuple[List[Finding], Dict[str, Any]]:
    """Return what is wrong with a project whose job is described by arguments of ``lightning-sm doctor``; all options.

    Raises:
        LaunchError: The settings or the folder cannot be read.
    """
    settings, _, options = _read(command_parser("doctor"), args)
    return check_project(settings), options


def check_project(settings: LaunchSettings) -> List[Finding]:
    """Return what is wrong with a project, as ``lightning-sm launch`` finds it, without AWS.

    Args:
        settings: What the job is asked to be. It needs neither a role nor, by default, an image and an instance type.
            Hyperparameters of a command are those of :func:`hyperparameters_of`.

    Raises:
        LaunchError: The settings or the folder cannot be read.
    """
    instance = "" if settings.instance_groups else settings.instance_type or "ml.g5.xlarge"
    settings = replace(settings, image=settings.image or "pytorch-2.8-gpu", instance_type=instance)
    account = Account(settings.region or "us-east-1", "bucket")
    request = create_job_request(settings, account, name="check")
    return [*problems_of(settings, request), *readable_secrets(request.as_body())]


def _run(command: str, args: Sequence[str]) -> int:
    parser = command_parser(command)
    settings, tuning, options = _read(parser, args)
    session = session_in(settings.region)
    if options.get("request"):
        request = _written(read_request(options["request"], parser, args, _WITH_BODY), settings.name)
    else:
        _refuse_missing(settings, tuning, session.region_name)
        account = account_of(settings.bucket, session)
        name = settings.name or default_name(settings, datetime.now(), tunes=tuning is not None)
        if tuning:
            request = create_tuning_request(settings, tuning, account, name=name)
            check_limits(request)
            job = draw(request, 0)
        else:
            request = job = create_job_request(settings, account, name=name)
        check_limits(job)
        if not options["no_check"]:
            _report(problems_of(settings, job, objective=tuning.objective if tuning else ""))
    if options.get("draw") is not None:
        request = draw(request, options["draw"])
    _report(readable_secrets(request.as_body()))
    if options["dry_run"] or options.get("draw") is not None:
        print(request)
        return 0
    sent = _pack_and_send(request, settings, session)
    what = f"Sent {sent['name']} to {sent['region']}: {sent['console']}"
    print(json.dumps(sent, indent=2) if options["json"] else what, flush=True)
    return follow(session, request.name, request.kind) if options["wait"] else 0


def _read(
    parser: ArgumentParser, args: Sequence[str]
) -> Tuple[LaunchSettings, Optional[TuningSettings], Dict[str, Any]]:
    """Return the settings with the hyperparameters of the command, those of a search, and all options."""
    options = parse(parser, args)
    program, run = split_command(options["args"], parser)
    options["entry_point"] = program or options["entry_point"]
    options["hyperparameters"] = {**options["hyperparameters"], **hyperparameters_of(run)}
    tuning = TuningSettings(**options["tuning"]) if "draw" in options else None
    return settings_in(options), tuning, options


def _refuse_missing(settings: LaunchSettings, tuning: Optional[TuningSettings], region: Optional[str]) -> None:
    """Raise if something is missing that every job needs; all of it is named."""
    needed: Dict[str, Any] = {
        "--image": settings.image,
        "--instance-type": settings.instance_type or settings.instance_groups,
        "--role": settings.role,
        "--region": region,
    }
    if tuning:
        needed.update({"--objective": tuning.objective, "--direction": tuning.direction, "--range": tuning.ranges})
        needed.update({"--max-jobs": tuning.max_jobs or tuning.strategy == "Grid"})
    missing = [flag for flag, value in needed.items() if not value]
    if missing:
        raise LaunchError(
            f"There is no {', no '.join(missing)}.",
            hint=f"`lightning-sm {'tune' if tuning else 'launch'} --help` describes each; IAM shows the role's ARN.",
        )


def _report(problems: Sequence[Finding]) -> None:
    """Show what may be wrong, and raise if something is."""
    errors = [each for each in problems if each.is_error]
    for each in problems:
        if not each.is_error:
            print(f"{each.text} HINT: {each.hint}", file=sys.stderr)
    if errors:
        raise LaunchError(
            " ".join(each.text for each in errors), hint=f"{errors[0].hint} --no-check sends it as it is."
        )


def _pack_and_send(request: JobRequest, settings: LaunchSettings, session: Any) -> Dict[str, str]:
    """Pack the source folder, upload it and create the job."""
    body = request.as_body()
    inputs = body.get("TrainingJobDefinition", body).get("InputDataConfig", ())
    addresses = {each["ChannelName"]: each["DataSource"].get("S3DataSource", {}).get("S3Uri", "") for each in inputs}
    data = [(folder, str(addresses.get(name, ""))) for name, folder in local_channels(settings).items()]
    for folder, address in data:
        if address_of_content(Path(folder), "").rpartition("-")[2] != address.rpartition("-")[2]:
            raise LaunchError(
                f"The channel {folder} is not the data of the request ({address or 'it has no such channel'}).",
                hint="Write the request again with --dry-run.",
            )
    sent = {address for _, address in data}
    _refuse_absent({name: uri for name, uri in addresses.items() if uri not in sent}, session)
    with tempfile.TemporaryDirectory() as place:
        archive: Optional[Path] = None
        if request.archive_uri:
            archive = Path(place, "sourcedir.tar.gz")
            packed = pack_source(Path(settings.source_dir), archive, allowed=settings.allow_files)
            print(f"Source of {settings.source_dir}: {packed}", file=sys.stderr)
        return send(request, archive, session, start=settings.from_checkpoint, data=data)


def _refuse_absent(addresses: Mapping[str, str], session: Any) -> None:
    """Raise if a channel of a request is a local folder that no job has uploaded: the job would find nothing there."""
    for name, uri in addresses.items():
        if re.search(rf"/channels/{re.escape(name)}-[0-9a-f]{{16}}$", uri) is None:
            continue
        there: List[Tuple[str, int]] = []
        with api_errors(f"s3:ListBucket of {uri}"):
            client = session.client("s3")
            with suppress(client.exceptions.NoSuchBucket):
                there += islice(objects_below(client, *bucket_and_key(f"{uri}/")), 1)
        if not there:
            raise LaunchError(
                f"The channel {name} of the request is a folder that is not uploaded yet: nothing is at {uri}.",
                hint=f"Give it again: --channel {name}=FOLDER.",
            )


def _written(body: Dict[str, Any], name: Optional[str]) -> JobRequest:
    """Return the request that ``launch --dry-run`` or an SDK has written, of a job of another name if there is one.

    An archive at the address of ``launch`` is packed from the source folder again; any other is there already.
    """
    old = str(body["TrainingJobName"])
    name = name or old
    # Only these are the job's own; data may have the same name.
    if "S3Uri" in body.get("CheckpointConfig", {}):
        # The bucket, behind two slashes, may have the same name, too.
        own = rf"(?<!/)/{re.escape(old)}(?=/|$)"
        body["CheckpointConfig"]["S3Uri"] = re.sub(own, f"/{name}", body["CheckpointConfig"]["S3Uri"])
    if name != old and "sagemaker_job_name" in body.get("HyperParameters", {}):
        body["HyperParameters"]["sagemaker_job_name"] = json.dumps(name)
    text = json.dumps({**body, "TrainingJobName": name}, indent=2)
    found = re.search(rf's3://[^"\\\s]+/(?={re.escape(f"{old}/{ARCHIVE}")})', text)
    archive = f"{found[0]}{name}/{ARCHIVE}" if found else ""
    if found:
        text = text.replace(f"{found[0]}{old}/{ARCHIVE}", archive)
    request = JobRequest(name, text, archive)
    check_limits(request)
    return request
