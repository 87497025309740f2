"""What the service copies from and to S3: inputs, checkpoints and results, in S3 itself or in local folders for it."""

import contextlib
import dataclasses
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.launch._send import api_errors, session_in
from lightning_sm.launch._upload import bucket_and_key, files_in, objects_below
from lightning_sm.rehearse._outcome import Upload
from lightning_sm.rehearse._plan import RehearsalFolder, RehearsalPlan
from lightning_sm.rehearse._request import RehearsalRequest
from lightning_sm.rehearse._sdk_v3 import write_drivers

__all__ = [
    "collect_results",
    "deliver_results",
    "download_inputs",
    "fetch_checkpoints",
    "send_checkpoints",
]

_HINT = "AWS_ENDPOINT_URL names another S3."
_ARCHIVES = (("model.tar.gz", "model"), ("output.tar.gz", "output/data"))

# Each file with its time and size, by which a change is seen.
_Snapshot = Mapping[str, Tuple[int, int]]


def fetch_checkpoints(bucket: Path, local: Path) -> _Snapshot:
    """Fill a host's checkpoint folder as the service does before it starts the container."""
    local.mkdir(parents=True, exist_ok=True)
    for name in _snapshot(bucket):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(bucket / name, local / name)
    return _snapshot(local)


def send_checkpoints(local: Path, before: _Snapshot, bucket: Path) -> None:
    """Copy what a host changed since ``before``, and delete what it deleted.

    Only changes are copied: a host that never wrote a checkpoint must not replace another's new one by its old one.
    """
    after = _snapshot(local)
    for name in before.keys() - after.keys():
        (bucket / name).unlink(missing_ok=True)
    for name, state in after.items():
        if before.get(name) != state:
            (bucket / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(local / name, bucket / name)


def _snapshot(folder: Path) -> Dict[str, Tuple[int, int]]:
    states = {name: path.stat() for name, path in files_in(folder)}
    return {name: (state.st_mtime_ns, state.st_size) for name, state in states.items()}


def collect_results(plan: RehearsalPlan, bucket: Optional[Path]) -> Tuple[Tuple[Upload, ...], Tuple[str, ...]]:
    """Write the archives of all hosts' models and outputs. Return what is uploaded, and warnings of name clashes."""
    folder, hosts = plan.folder, plan.request.hosts
    folder.collected.mkdir(parents=True, exist_ok=True)
    uploads: List[Upload] = []
    warnings: List[str] = []
    for archive, source in _ARCHIVES:
        found = [(host, name, path) for host in hosts for name, path in files_in(folder.opt_ml(host) / source)]
        if not found:
            continue
        with tarfile.open(str(folder.collected / archive), "w:gz", compresslevel=1) as packed:
            for host, name, path in found:
                packed.add(str(path), arcname=name)
                uploads.append(Upload(archive, name, path.stat().st_size, host))
        warnings += _clashes(archive, found)
    if bucket is not None:
        uploads += [Upload("checkpoints", name, path.stat().st_size, "all") for name, path in files_in(bucket)]
    return tuple(uploads), tuple(warnings)


def _clashes(archive: str, found: List[Tuple[str, str, Path]]) -> List[str]:
    writers: Dict[str, List[str]] = {}
    for host, name, _ in found:
        writers.setdefault(name, []).append(host)
    return [
        f"{name} in {archive} was written by {', '.join(hosts)}: the service puts all hosts' files into one archive, "
        "so only one of them is kept."
        for name, hosts in writers.items()
        if len(hosts) > 1
    ]


def download_inputs(request: RehearsalRequest, folder: RehearsalFolder) -> RehearsalRequest:
    """Download source archive, channels and earlier checkpoints, before the hosts lose the network.

    Returns:
        The request, with local folders in place of ``s3://`` prefixes.

    Raises:
        RehearsalError: There is nothing at an address.
        LaunchError: boto3 is missing, or S3 refuses.
    """
    local: Dict[str, str] = dict(request.options.channels)
    for channel in request.channels:
        target = folder.root / "fetched" / channel.name
        if channel.source.startswith("s3://"):
            _download(channel.source, target)
            local[channel.name] = str(target)
        elif channel.name == "sm_drivers" and request.scripts:
            write_drivers(target, request.scripts)
            local[channel.name] = str(target)
    request = request.with_options(channels=local)
    if request.sdk == "v3" and not request.scripts:
        (drivers,) = (channel.path for channel in request.channels if channel.name == "sm_drivers")
        script = (drivers / "sm_train.sh").read_text(encoding="utf-8")
        request = dataclasses.replace(request, scripts=(("sm_train.sh", script),))
    if request.archive_uri is not None:
        folder.archive.parent.mkdir(parents=True, exist_ok=True)
        session = session_in(None)
        with api_errors(f"s3:GetObject of {request.archive_uri}", hint=_HINT):
            session.client("s3").download_file(*bucket_and_key(request.archive_uri), str(folder.archive))
    if request.checkpoint_uri is not None:
        _download(f"{request.checkpoint_uri.rstrip('/')}/", folder.checkpoints, needed=False)
    return request


def deliver_results(request: RehearsalRequest, folder: RehearsalFolder) -> Optional[str]:
    """Copy archives and checkpoints to where the request says, and return the place of the archives.

    That is S3 with ``upload``, else ``output_dir``, else a new temporary folder if the job would write to S3. ``None``
    if nothing is copied.

    Raises:
        LaunchError: S3 refuses.
    """
    found = list(files_in(folder.collected))
    if request.options.upload:
        output = request.output_uri and f"{request.output_uri.rstrip('/')}/{request.job_name}/output"
        checkpoints = request.checkpoint_uri
    else:
        output = request.options.output_dir
        if output is None and found and (request.output_uri or request.checkpoint_uri):
            output = tempfile.mkdtemp(prefix="lightning-sm-results-")
        checkpoints = output and f"{output}/{folder.checkpoints.name}"
    for name, path in found:
        is_archive = path.parent == folder.collected
        target = output if is_archive else checkpoints
        inner = name if is_archive else str(path.relative_to(folder.checkpoints))
        if target is not None:
            _put(path, f"{target.rstrip('/')}/{inner}")
    return output


def _download(uri: str, folder: Path, *, needed: bool = True) -> None:
    """Download the objects whose keys begin with an address, as for S3Prefix; that of a folder ends with a slash."""
    bucket, prefix = bucket_and_key(uri)
    session = session_in(None)
    keys: List[str] = []
    with api_errors(f"s3:GetObject of {uri}", hint=_HINT):
        client = session.client("s3")
        # `launch` makes the default bucket when it sends the first job of an account.
        with contextlib.nullcontext() if needed else contextlib.suppress(client.exceptions.NoSuchBucket):
            keys += [key for key, _ in objects_below(client, bucket, prefix) if not key.endswith("/")]
        for key in keys:
            target = folder / (key[len(prefix) :].lstrip("/") or key.rpartition("/")[2])
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, key, str(target))
    if needed and not keys:
        raise RehearsalError(
            f"{uri} is empty, and SageMaker refuses to start a job with an empty channel.",
            hint="Upload the data, or give the folder that launch will upload: --channel NAME=PATH.",
        )


def _put(path: Path, target: str) -> None:
    if not target.startswith("s3://"):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        return
    with api_errors(f"s3:PutObject to {target}", hint="--output-dir takes a local folder instead."):
        session_in(None).client("s3").upload_file(str(path), *bucket_and_key(target))
