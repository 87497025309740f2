"""The command ``lightning-sm launch``."""

import json
import re
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._check import job_request_of, look_at
from lightning_sm.launch._refusals import check_limits, check_request, readable_secrets
from lightning_sm.launch._request import Account, Request, default_name
from lightning_sm.launch._send import SentJob, account_of, clients, make_default_bucket, send, session_for
from lightning_sm.launch._settings import LaunchSettings, local_channels
from lightning_sm.launch._upload import address_of_content
from lightning_sm.launch._watch import follow_until_interrupted
from lightning_sm.launch._words import LaunchArguments, exit_status, read_words

__all__ = ["main", "pack_and_send", "warn_of_secrets"]


def main(words: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status: 0, or 1 after an error, which is one line on stderr.

    Args:
        words: The words behind ``lightning-sm launch`` instead of those of the command line.
    """
    given = list(sys.argv[1:] if words is None else words)
    return exit_status("lightning-sm launch", lambda: _launch(read_words(given)))


def _launch(arguments: LaunchArguments) -> int:
    settings = arguments.settings
    account: Optional[Account] = None
    request: Request
    if arguments.request is not None:
        request = _written(arguments.request, settings)
        region = settings.region or _value(request, "sagemaker_region")
        session = clients(region)
    else:
        session = session_for(settings)
        account = account_of(settings, session)
        name = settings.name or default_name(settings, datetime.now())
        made = job_request_of(settings, account, arguments.hyperparameters, name)
        check_request(made)
        line = look_at(made) if arguments.check or "auto" in settings.metrics else None
        request = job_request_of(settings, account, arguments.hyperparameters, name, line) if line else made
    warn_of_secrets(request, "launch")
    if arguments.dry_run:
        print(request)
        return 0
    job = pack_and_send(request, settings, session, account)
    print(job.show(as_json=arguments.as_json))
    return follow_until_interrupted(session, job.name) if arguments.wait else 0


def warn_of_secrets(request: Request, command: str) -> None:
    """Say which variables and hyperparameters of a request look like secrets."""
    for name in readable_secrets(request.as_body()):
        print(
            f"lightning-sm {command}: {name} looks like a secret, and whoever may describe the job can read it. "
            "HINT: Let the program fetch it from AWS Secrets Manager.",
            file=sys.stderr,
        )


def pack_and_send(request: Request, settings: LaunchSettings, session: Any, account: Optional[Account]) -> SentJob:
    """Pack the source folder, upload it and create the job.

    Raises:
        LaunchError: The folder cannot be packed, or a call of the API failed.
    """
    from lightning_sm.launch._package import pack_source

    if account is not None:
        make_default_bucket(account, session)
    with tempfile.TemporaryDirectory() as folder:
        archive: Optional[Path] = None
        if request.archive_uri:
            packed = pack_source(
                Path(settings.source_dir), Path(folder, "sourcedir.tar.gz"), allowed=settings.allow_files
            )
            print(f"Source of {settings.source_dir}: {packed}", file=sys.stderr)
            archive = packed.path
        return send(
            request,
            archive,
            session,
            owner=account.number if account else None,
            start=settings.from_checkpoint,
            data=_uploads(request, settings),
        )


def _uploads(request: Request, settings: LaunchSettings) -> List[Tuple[str, str]]:
    """The local folders of channels with the addresses that the request has for them."""
    body = request.as_body()
    inputs = body.get("TrainingJobDefinition", body).get("InputDataConfig", ())
    addresses = {each["ChannelName"]: each["DataSource"].get("S3DataSource", {}).get("S3Uri", "") for each in inputs}
    found = [(folder, str(addresses.get(name, ""))) for name, folder in local_channels(settings).items()]
    for folder, address in found:
        if address_of_content(Path(folder), "").rpartition("-")[2] != address.rpartition("-")[2]:
            raise LaunchError(
                f"The channel {folder} is not the data of the request ({address or 'it has no such channel'}).",
                hint="Write the request again with --dry-run.",
            )
    return found


def _written(path: str, settings: LaunchSettings) -> Request:
    """Read the request that ``launch --dry-run`` or an SDK has written.

    Its archive is packed from the source folder again if it is one of ``launch``; any other is there already.

    Raises:
        LaunchError: The file holds no such request.
    """
    try:
        body: Dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        name = str(body["TrainingJobName"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"--request {path} holds no CreateTrainingJob request ({type(error).__name__}: {error}).",
            hint="Write it with `lightning-sm launch --dry-run … > request.json`.",
        ) from error
    if settings.name and settings.name != name:
        body = _renamed(body, name, settings.name)
        name = settings.name
    check_limits(body, "CreateTrainingJob")
    text = json.dumps(body, indent=2)
    archive = re.search(rf's3://[^"\\\s]+/{re.escape(name)}/source/sourcedir\.tar\.gz', text)
    return Request(name, text, archive[0] if archive else "")


def _renamed(node: Any, old: str, new: str) -> Any:
    """Replace the name of a job where it is a value, or a part of an address."""
    if isinstance(node, dict):
        return {key: _renamed(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [_renamed(value, old, new) for value in node]
    if not isinstance(node, str):
        return node
    if node in (old, json.dumps(old)):
        return node.replace(old, new)
    return node.replace(f"/{old}/", f"/{new}/") if node.strip('"').startswith("s3://") else node


def _value(request: Request, name: str) -> Any:
    """A hyperparameter of a request, whose values may be JSON."""
    text = request.as_body().get("HyperParameters", {}).get(name)
    try:
        return json.loads(text) if text is not None else None
    except ValueError:
        return text
