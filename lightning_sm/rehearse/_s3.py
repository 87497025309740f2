"""S3 for request bodies: fetch what the service would fetch, send what it would send. Needs boto3."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, List, Tuple

from ._drivers_v3 import distribution_in
from ._errors import RehearsalError
from ._request import Channel, RehearsalRequest
from ._tree import Tree

__all__ = ["fetch_inputs", "send_results"]


def fetch_inputs(request: RehearsalRequest, tree: Tree) -> RehearsalRequest:
    """Bring archive, channels and earlier checkpoints here, before the hosts lose the network.

    Raises:
        RehearsalError: boto3 is missing, or S3 does not have something.
    """
    channels: List[Channel] = []
    for channel in request.channels:
        if channel.source.startswith("s3://"):
            folder = tree.fetched / "channels" / channel.name
            _download(channel.source, folder)
            channel = dataclasses.replace(channel, source=str(folder))
        channels.append(channel)
    request = dataclasses.replace(request, channels=tuple(channels))
    if request.archive_uri is not None and request.archive_uri.startswith("s3://"):
        _download(request.archive_uri, tree.archive.parent, name=tree.archive.name)
    if request.checkpoint_uri is not None and request.checkpoint_dir is None:
        folder = tree.fetched / "checkpoints"
        folder.mkdir(parents=True)
        _download(request.checkpoint_uri, folder, needed=False)
        request = dataclasses.replace(request, checkpoint_dir=folder)
    drivers = [channel.path for channel in request.channels if channel.name == "sm_drivers"]
    if drivers:
        request = dataclasses.replace(request, distribution=distribution_in(drivers[0]))
    return request


def send_results(request: RehearsalRequest, tree: Tree) -> str | None:
    """Upload archives and checkpoints to where the request wants them; ``None`` when it wants them nowhere in S3."""
    sent = None
    if request.output_uri is not None and tree.collected.is_dir():
        sent = f"{request.output_uri.rstrip('/')}/{request.job_name}/output"
        for path in sorted(tree.collected.glob("*.tar.gz")):
            _upload(path, f"{sent}/{path.name}")
    fetched = tree.fetched / "checkpoints"
    if request.checkpoint_uri is not None and request.checkpoint_dir == fetched:
        for path in sorted(each for each in fetched.rglob("*") if each.is_file()):
            _upload(path, f"{request.checkpoint_uri.rstrip('/')}/{path.relative_to(fetched)}")
    return sent


def _client() -> Any:
    try:
        return importlib.import_module("boto3").client("s3")
    except ImportError as error:
        raise RehearsalError(
            "The request names s3:// folders, and boto3 is not installed.", hint="pip install 'lightning-sm[rehearse]'"
        ) from error


def _split(uri: str) -> Tuple[str, str]:
    bucket, _, key = uri[len("s3://") :].partition("/")
    return bucket, key


def _download(uri: str, folder: Path, *, name: str | None = None, needed: bool = True) -> None:
    bucket, prefix = _split(uri)
    client = _client()
    count = 0
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                key = entry["Key"]
                if key.endswith("/"):
                    continue
                rest = key[len(prefix) :].lstrip("/") or key.rpartition("/")[2]
                target = folder / (name or rest)
                target.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, key, str(target))
                count += 1
    except Exception as error:
        # botocore's exceptions have no common base that is not Exception, and the import is optional.
        raise RehearsalError(f"{uri} cannot be fetched: {error}.", hint="AWS_ENDPOINT_URL names another S3.") from error
    if needed and not count:
        raise RehearsalError(f"{uri} is empty, and SageMaker refuses to start a job with an empty channel.")


def _upload(path: Path, uri: str) -> None:
    bucket, key = _split(uri)
    try:
        _client().upload_file(str(path), bucket, key)
    except Exception as error:
        raise RehearsalError(f"{path.name} cannot be sent to {uri}: {error}.") from error
