"""The command ``lightning-sm launch``."""

import json
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Optional, Sequence

from lightning_sm.errors import LightningSMError
from lightning_sm.launch._refusals import check_request, readable_secrets
from lightning_sm.launch._request import JobRequest, create_job_request, default_name, definitions_of
from lightning_sm.launch._send import Request, SentJob, account_of, clients, send
from lightning_sm.launch._settings import LaunchSettings
from lightning_sm.launch._watch import follow_until_interrupted
from lightning_sm.launch._words import LaunchArguments, read_words

__all__ = ["main", "pack_and_send"]


def main(words: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status: 0, or 1 after an error, which is one line on stderr.

    Args:
        words: The words behind ``lightning-sm launch`` instead of those of the command line.
    """
    try:
        return _launch(read_words(list(sys.argv[1:] if words is None else words)))
    except LightningSMError as error:
        print(f"lightning-sm launch: {error}", file=sys.stderr)
        return 1


def _launch(arguments: LaunchArguments) -> int:
    session, _ = clients(arguments.settings.region)
    request = _request(arguments, session)
    check_request(request)
    for name in readable_secrets(request):
        print(
            f"lightning-sm launch: {name} looks like a secret, and whoever may describe the job can read it. "
            "HINT: Let the program fetch it from AWS Secrets Manager.",
            file=sys.stderr,
        )
    if arguments.dry_run:
        print(request)
        return 0
    job = pack_and_send(request, arguments.settings, session)
    shown = {"name": job.name, "arn": job.arn, "region": job.region, "console": job.console_url}
    if arguments.as_json:
        print(json.dumps(shown, indent=2))
    else:
        print(f"Training job {job.name} in {job.region}: {job.console_url}")
    return follow_until_interrupted(session, job.name) if arguments.wait else 0


def pack_and_send(request: Request, settings: LaunchSettings, session: Any) -> SentJob:
    """Pack the source folder, upload it and create the job.

    Raises:
        LaunchError: The folder cannot be packed, or a call of the API failed.
    """
    from lightning_sm.launch._package import pack_source

    with tempfile.TemporaryDirectory() as folder:
        packed = pack_source(Path(settings.source_dir), Path(folder, "sourcedir.tar.gz"), allowed=settings.allow_files)
        print(f"Source of {settings.source_dir}: {packed}", file=sys.stderr)
        return send(request, packed.path, session)


def _request(arguments: LaunchArguments, session: Any) -> JobRequest:
    settings = arguments.settings
    name = settings.name or default_name(settings, datetime.now())
    return create_job_request(
        settings,
        account_of(settings, session),
        name=name,
        hyperparameters=arguments.hyperparameters,
        metric_definitions=definitions_of(settings, {**settings.hyperparameters, **arguments.hyperparameters}),
    )
