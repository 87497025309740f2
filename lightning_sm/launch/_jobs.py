"""The commands for jobs that were sent: ``jobs``, ``logs``, ``stop`` and ``artifacts`` of ``lightning-sm``."""

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._send import api_errors, clients, is_missing
from lightning_sm.launch._upload import TransferProgress, bucket_and_key
from lightning_sm.launch._watch import follow_until_interrupted, line_writer
from lightning_sm.launch._words import exit_status

__all__ = ["artifacts", "jobs", "logs", "stop"]

# The API's names of both kinds of jobs, and those of boto3's methods.
_KINDS = {"TrainingJob": "training_job", "HyperParameterTuningJob": "hyper_parameter_tuning_job"}


def jobs(words: Sequence[str]) -> int:
    """List the newest training and tuning jobs of the account and region."""
    parser = _parser("jobs", "List the newest training and tuning jobs.")
    parser.add_argument("--contains", help="only jobs whose names contain this text")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many at most (default: 20)")
    return _run(parser, words, _list)


def logs(words: Sequence[str]) -> int:
    """Show states and log lines of a job."""
    parser = _parser("logs", "Show the states of a job and the lines of its hosts.", job=True)
    parser.add_argument("--follow", action="store_true", help="go on until the job ends")
    return _run(parser, words, _logs)


def stop(words: Sequence[str]) -> int:
    """Stop a job. lightning_sm saves a checkpoint and exports the model before the container ends."""
    return _run(_parser("stop", "Stop a job.", job=True), words, _stop)


def artifacts(words: Sequence[str]) -> int:
    """Download and unpack the model of a job, of a tuning job that of its best training job."""
    parser = _parser("artifacts", "Download and unpack the model of a job.", job=True)
    parser.add_argument("--to", metavar="FOLDER", help="where to (default: a new folder of the job's name)")
    parser.add_argument("--output", action="store_true", help="also output.tar.gz, with logs and checkpoints")
    return _run(parser, words, _artifacts)


def _parser(name: str, description: str, *, job: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lightning-sm {name}", description=description, allow_abbrev=False)
    if job:
        parser.add_argument("name", help="the name of the job")
    parser.add_argument("--region", help="the AWS region; by default that of the AWS configuration")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(
    parser: argparse.ArgumentParser, words: Sequence[str], command: Callable[[Any, argparse.Namespace], int]
) -> int:
    options = parser.parse_args(list(words))
    return exit_status(parser.prog, lambda: command(clients(options.region), options))


def _list(session: Any, options: argparse.Namespace) -> int:
    given = {"NameContains": options.contains} if options.contains else {}
    size = {"MaxItems": options.limit, "PageSize": min(options.limit, 100)}
    rows: List[Dict[str, str]] = []
    for kind, operation in _KINDS.items():
        with api_errors(f"sagemaker:List{kind}s"):
            pages = session.client("sagemaker").get_paginator(f"list_{operation}s")
            for page in pages.paginate(SortBy="CreationTime", SortOrder="Descending", PaginationConfig=size, **given):
                rows += [
                    {
                        "name": each[f"{kind}Name"],
                        "status": each.get("SecondaryStatus") or each[f"{kind}Status"],
                        "created": each["CreationTime"].strftime("%Y-%m-%d %H:%M"),
                        "kind": "training" if kind == "TrainingJob" else "tuning",
                    }
                    for each in page[f"{kind}Summaries"]
                ]
    rows = sorted(rows, key=lambda row: row["created"], reverse=True)[: options.limit]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:{width}}  {row['created']}  {row['kind']:8}  {row['status']}")
    if not rows:
        print(f"There are no training jobs and no tuning jobs in {session.region_name}.", file=sys.stderr)
    return 0


def _logs(session: Any, options: argparse.Namespace) -> int:
    kind, _ = _find(session, options.name)
    write = line_writer(as_json=options.json)
    return follow_until_interrupted(session, options.name, kind=kind, write=write, wait=options.follow)


def _stop(session: Any, options: argparse.Namespace) -> int:
    kind, _ = _find(session, options.name)
    with api_errors(f"sagemaker:Stop{kind} for {options.name}"):
        getattr(session.client("sagemaker"), f"stop_{_KINDS[kind]}")(**{f"{kind}Name": options.name})
    print(json.dumps({"name": options.name, "status": "Stopping"}) if options.json else f"Stopping {options.name}.")
    return 0


def _find(session: Any, name: str) -> Tuple[str, Dict[str, Any]]:
    """Return the kind of a job and its description.

    Raises:
        LaunchError: There is no job of that name.
    """
    from botocore.exceptions import ClientError

    for kind, operation in _KINDS.items():
        try:
            with api_errors(f"sagemaker:Describe{kind} for {name}", passes=is_missing):
                return kind, getattr(session.client("sagemaker"), f"describe_{operation}")(**{f"{kind}Name": name})
        except ClientError:
            continue
    raise LaunchError(
        f"There is no training job and no tuning job {name!r} in {session.region_name}.",
        hint="`lightning-sm jobs` lists them; --region names another region.",
    )


def _artifacts(session: Any, options: argparse.Namespace) -> int:
    kind, job = _find(session, options.name)
    if kind != "TrainingJob":
        best = (job.get("BestTrainingJob") or {}).get("TrainingJobName")
        if best is None:
            raise LaunchError(
                f"The tuning job {options.name} has no best training job yet ({job[f'{kind}Status']}).",
                hint=f"`lightning-sm logs {options.name}` shows its training jobs.",
            )
        print(f"The best training job of {options.name}: {best}", file=sys.stderr)
        _, job = _find(session, best)
    name, state = job["TrainingJobName"], job["TrainingJobStatus"]
    uri = (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts")
    saved = (job.get("CheckpointConfig") or {}).get("S3Uri")
    elsewhere = f" Its checkpoints are at {saved}." if saved else ""
    if not uri:
        reason = f": {job['FailureReason']}" if job.get("FailureReason") else ""
        advice = "Wait until it has ended." if state in ("InProgress", "Stopping") else "It wrote none."
        raise LaunchError(f"The job {name} has no model ({state}{reason}).", hint=f"{advice}{elsewhere}")
    target = Path(options.to or options.name)
    wanted = [(uri, target)]
    if options.output:
        wanted.append((f"{uri.rpartition('/')[0]}/output.tar.gz", target / "output"))
    files: List[str] = []
    for address, folder in wanted:
        nothing = f"The job wrote nothing there, or the archive was deleted.{elsewhere}"
        files += _fetch(session, address, folder, nothing)
    if options.json:
        print(json.dumps({"folder": str(target), "files": files}, indent=2))
    else:
        print(f"{len(files)} files in {target}")
    return 0


def _fetch(session: Any, uri: str, folder: Path, hint: str) -> List[str]:
    """Download and unpack an archive; nothing that is there already is replaced."""
    bucket, key = bucket_and_key(uri)
    client = session.client("s3")
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place, "archive.tar.gz")
        with api_errors(f"s3:GetObject of {uri}", hint=hint):
            size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
            client.download_file(bucket, key, str(archive), Callback=TransferProgress(uri.rpartition("/")[2], size))
        try:
            with tarfile.open(archive) as packed:
                return _unpack(packed, folder)
        except (OSError, tarfile.TarError) as error:
            raise LaunchError(
                f"{uri} cannot be unpacked: {error}.", hint="Was the job stopped while it uploaded?"
            ) from error


def _unpack(packed: tarfile.TarFile, folder: Path) -> List[str]:
    root = folder.resolve()
    members = [member for member in packed.getmembers() if member.isfile()]
    for member in members:
        path = (folder / member.name).resolve()
        if root not in path.parents:
            raise LaunchError(f"{member.name} in the archive lies outside of it.", hint="Do not unpack this archive.")
        if path.exists():
            raise LaunchError(f"{path} is there already.", hint="Give another folder: --to FOLDER.")
    for member in members:
        path = folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        source = packed.extractfile(member)
        assert source is not None, "members are files"
        with source, path.open("wb") as file:
            shutil.copyfileobj(source, file)
    return [str(folder / member.name) for member in members]
