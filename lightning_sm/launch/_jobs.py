"""The commands for jobs that were sent: ``jobs``, ``logs``, ``stop`` and ``artifacts`` of ``lightning-sm``."""

import gzip
import json as json_module
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from jsonargparse.typing import PositiveInt

from lightning_sm._options import add_options, new_parser, parse
from lightning_sm.errors import LaunchError
from lightning_sm.launch._send import api_errors, call, describe, session_in
from lightning_sm.launch._upload import bucket_and_key, objects_below, progress_bar
from lightning_sm.launch._watch import follow as follow_job

__all__ = ["artifacts", "jobs", "logs", "stop"]

# The API's names of both kinds of jobs, and those of boto3's paginators.
_KINDS = {"TrainingJob": "list_training_jobs", "HyperParameterTuningJob": "list_hyper_parameter_tuning_jobs"}


def jobs(args: Sequence[str]) -> int:
    """Run ``lightning-sm jobs``."""
    return _run("jobs", _list, args)


def logs(args: Sequence[str]) -> int:
    """Run ``lightning-sm logs``."""
    return _run("logs", _logs, args)


def stop(args: Sequence[str]) -> int:
    """Run ``lightning-sm stop``."""
    return _run("stop", _stop, args)


def artifacts(args: Sequence[str]) -> int:
    """Run ``lightning-sm artifacts``."""
    return _run("artifacts", _artifacts, args)


def _run(name: str, command: Callable[..., int], args: Sequence[str]) -> int:
    parser = new_parser(f"lightning-sm {name}", str(command.__doc__).partition("\n")[0])
    add_options(parser, command, types={"limit": PositiveInt})
    return command(**parse(parser, args))


def _list(contains: Optional[str] = None, limit: int = 20, region: Optional[str] = None, json: bool = False) -> int:
    """List the newest training and tuning jobs.

    Args:
        contains: Only jobs whose names contain this text.
        limit: How many at most.
        region: The AWS region; by default that of the AWS configuration.
        json: Print JSON.
    """
    session = session_in(region)
    given = {"NameContains": contains} if contains else {}
    size = {"MaxItems": limit, "PageSize": min(limit, 100)}
    rows: List[Dict[str, str]] = []
    for kind, operation in _KINDS.items():
        with api_errors(f"sagemaker:List{kind}s"):
            pages = session.client("sagemaker").get_paginator(operation)
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
    rows = sorted(rows, key=lambda row: row["created"], reverse=True)[:limit]
    width = max((len(row["name"]) for row in rows), default=0)
    if json:
        print(json_module.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['name']:{width}}  {row['created']}  {row['kind']:8}  {row['status']}")
    if not rows:
        print(f"There are no training jobs and no tuning jobs in {session.region_name}.", file=sys.stderr)
    return 0


def _logs(name: str, follow: bool = False, region: Optional[str] = None) -> int:
    """Show the states of a job and the lines of its hosts.

    Args:
        name: The name of the job.
        follow: Go on until the job ends.
        region: The AWS region; by default that of the AWS configuration.
    """
    session, kind, _ = _find(region, name)
    return follow_job(session, name, kind, wait=follow)


def _stop(name: str, region: Optional[str] = None) -> int:
    """Stop a job; lightning_sm saves a checkpoint and exports the model before the container ends.

    Args:
        name: The name of the job.
        region: The AWS region; by default that of the AWS configuration.
    """
    session, kind, _ = _find(region, name)
    with api_errors(f"sagemaker:Stop{kind} for {name}"):
        call(session.client("sagemaker"), f"Stop{kind}")(**{f"{kind}Name": name})
    print(f"Stopping {name}.")
    return 0


def _artifacts(
    name: str, to: Optional[str] = None, output: bool = False, region: Optional[str] = None, json: bool = False
) -> int:
    """Download and unpack the model of a job, of a tuning job that of its best training job.

    Args:
        name: The name of the job.
        to: The folder to write to; by default a new one of the job's name.
        output: Also fetch ``output.tar.gz``, with logs and reports.
        region: The AWS region; by default that of the AWS configuration.
        json: Print JSON.
    """
    session, kind, job = _find(region, name)
    if kind != "TrainingJob":
        best = (job.get("BestTrainingJob") or {}).get("TrainingJobName")
        if best is None:
            raise LaunchError(
                f"The tuning job {name} has no best training job yet ({job['Status']}).",
                hint=f"`lightning-sm logs {name}` shows its training jobs.",
            )
        print(f"The best training job of {name}: {best}", file=sys.stderr)
        _, _, job = _find(region, best)
    uri = (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts")
    saved = (job.get("CheckpointConfig") or {}).get("S3Uri")
    elsewhere = f" Its checkpoints are at {saved}." if saved else ""
    if not uri:
        state = ": ".join(filter(None, (job["Status"], job.get("FailureReason"))))
        advice = "Wait until it has ended." if state in ("InProgress", "Stopping") else "It wrote none."
        raise LaunchError(f"The job {job['TrainingJobName']} has no model ({state}).", hint=f"{advice}{elsewhere}")
    target, nothing = Path(to or name), f"The job wrote nothing there, or the archive was deleted.{elsewhere}"
    beside = f"{uri.rstrip('/').rpartition('/')[0]}/output.tar.gz"
    # It comes first, since it may be missing, and then the model can be fetched alone.
    files = _fetch(session, beside, target / "output", nothing) if output else []
    files += (_fetch if uri.endswith(".tar.gz") else _fetch_folder)(session, uri, target, nothing)
    if json:
        print(json_module.dumps({"folder": str(target), "files": files}, indent=2))
    else:
        print(f"{len(files)} files in {target}")
    return 0


def _find(region: Optional[str], name: str) -> Tuple[Any, str, Dict[str, Any]]:
    """Return a boto3 session, the kind of a job and its description.

    Raises:
        LaunchError: There is no job of that name.
    """
    session = session_in(region)
    for kind in _KINDS:
        job = describe(session, kind, name)
        if job is not None:
            return session, kind, job
    raise LaunchError(
        f"There is no training job and no tuning job {name!r} in {session.region_name}.",
        hint="`lightning-sm jobs` lists them; --region names another region.",
    )


def _fetch(session: Any, uri: str, folder: Path, hint: str) -> List[str]:
    """Download and unpack an archive; nothing that is there already is replaced."""
    bucket, key = bucket_and_key(uri)
    client = session.client("s3")
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place, "archive.tar.gz")
        with api_errors(f"s3:GetObject of {uri}", hint=hint):
            size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
            with progress_bar(uri.rpartition("/")[2], size) as progress:
                client.download_file(bucket, key, str(archive), Callback=progress.update)
        try:
            with tarfile.open(archive) as packed:
                return _unpack(packed, folder)
        except (gzip.BadGzipFile, EOFError, tarfile.TarError) as error:
            raise LaunchError(
                f"{uri} cannot be unpacked: {error}.", hint="Was the job stopped while it uploaded?"
            ) from error


def _fetch_folder(session: Any, uri: str, folder: Path, hint: str) -> List[str]:
    """Download a model that was not packed; nothing that is there already is replaced."""
    bucket, key = bucket_and_key(uri)
    prefix, client = f"{key.rstrip('/')}/", session.client("s3")
    with api_errors(f"s3:ListBucket of {uri}"):
        names = [name[len(prefix) :] for name, _ in objects_below(client, bucket, prefix) if name[-1] != "/"]
    if not names:
        raise LaunchError(f"There is nothing at {uri}.", hint=hint)
    _refuse(folder, names)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with api_errors(f"s3:GetObject of {uri}{name}"):
            client.download_file(bucket, f"{prefix}{name}", str(folder / name))
    return [str(folder / name) for name in names]


def _refuse(folder: Path, names: Sequence[str]) -> None:
    """Raise where a file would be outside of the folder, or replace one."""
    for path in (folder / name for name in names):
        if folder.resolve() not in path.resolve().parents:
            raise LaunchError(f"{path} in the archive lies outside of it.", hint="Do not unpack this archive.")
        if path.exists():
            raise LaunchError(f"{path} is there already.", hint="Give another folder: --to FOLDER.")


def _unpack(packed: tarfile.TarFile, folder: Path) -> List[str]:
    found = packed.getmembers()
    files = {member.name for member in found if member.isfile()}
    # A hard link is one more name of a file.
    members = [member for member in found if member.isfile() or (member.islnk() and member.linkname in files)]
    left = [member.name for member in found if not member.isdir() and member not in members]
    _refuse(folder, [member.name for member in members])
    safely: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    packed.extractall(folder, members, **safely)
    if left:
        print(
            f"Not unpacked, since they are symbolic links or no files of the archive: {', '.join(left)}",
            file=sys.stderr,
        )
    return [str(folder / member.name) for member in members]
