"""The command ``lightning-sm launch``."""

import sys
import tempfile
from pathlib import Path
from typing import Any, Optional, Sequence

from lightning_sm.launch._refusals import check_request, readable_secrets
from lightning_sm.launch._request import Request, job_request_of
from lightning_sm.launch._send import SentJob, account_of, clients, send
from lightning_sm.launch._settings import LaunchSettings
from lightning_sm.launch._watch import follow_until_interrupted
from lightning_sm.launch._words import LaunchArguments, exit_status, read_words

__all__ = ["main", "pack_and_send"]


def main(words: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status: 0, or 1 after an error, which is one line on stderr.

    Args:
        words: The words behind ``lightning-sm launch`` instead of those of the command line.
    """
    given = list(sys.argv[1:] if words is None else words)
    return exit_status("lightning-sm launch", lambda: _launch(read_words(given)))


def _launch(arguments: LaunchArguments) -> int:
    session, _ = clients(arguments.settings.region)
    settings = arguments.settings
    request = job_request_of(settings, account_of(settings, session), arguments.hyperparameters)
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
    job = pack_and_send(request, settings, session)
    print(job.show(as_json=arguments.as_json))
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
