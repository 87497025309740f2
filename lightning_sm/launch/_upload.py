"""Local folders as channels: an address that their content determines, and the upload of what is not there yet."""

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Mapping, Tuple

from lightning_sm.errors import LaunchError

__all__ = ["address_of_content", "bucket_and_key", "files_in", "objects_below", "progress_bar", "upload_folder"]

_THREADS = 8
_BLOCK = 1 << 20


def bucket_and_key(uri: str) -> Tuple[str, str]:
    """Split an ``s3://`` address."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def address_of_content(path: Path, prefix: str) -> str:
    """Return an address below a prefix that a digest of names and contents ends.

    The same files have the same address in every job, and no job's data changes under it when the folder does.

    Args:
        path: A folder or a file.
        prefix: The ``s3://`` address above it.

    Raises:
        LaunchError: There are no files, or one cannot be read or uploaded.
    """
    digest, files = hashlib.sha256(), list(files_in(path))
    try:
        for name, file in files:
            inner = hashlib.sha256()
            with file.open("rb") as stream:
                for block in iter(lambda: stream.read(_BLOCK), b""):
                    inner.update(block)
            digest.update(f"{name}\0{inner.hexdigest()}\n".encode())
    except (OSError, UnicodeError) as error:
        raise LaunchError(
            f"The channel {path} cannot be read: {error}.", hint="Make the file readable, and its name UTF-8."
        ) from error
    # rglob does not enter such links and folders, and what is behind them would be missing in the job.
    links = [str(each) for each in sorted(path.rglob("*")) if each.is_symlink() and not each.is_file()]
    if links:
        raise LaunchError(
            f"{', '.join(links[:5])} in the channel {path} is a link to a folder, or to nothing.",
            hint="Put the files there, or make the folder a channel of its own.",
        )
    closed = [str(each) for each in (path, *path.rglob("*")) if each.is_dir() and not os.access(each, os.R_OK)]
    if closed:
        raise LaunchError(f"{', '.join(closed[:5])} in the channel {path} cannot be read.", hint="Change its rights.")
    if not files:
        raise LaunchError(
            f"The channel {path} has no files on this machine.", hint="Name a folder with files, or s3://BUCKET/PREFIX."
        )
    return f"{prefix}-{digest.hexdigest()[:16]}"


def objects_below(client: Any, bucket: str, prefix: str, **arguments: str) -> Iterator[Tuple[str, int]]:
    """Yield key and size of each object below a prefix."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, **arguments):
        for each in page.get("Contents", ()):
            yield each["Key"], each["Size"]


def upload_folder(path: Path, address: str, session: Any, arguments: Mapping[str, str]) -> None:
    """Upload the files of a folder that are not at the address yet.

    Args:
        path: The folder, or a file.
        address: What :func:`address_of_content` has returned for it.
        session: A boto3 session.
        arguments: More arguments of the upload.
    """
    client = session.client("s3")
    bucket, prefix = bucket_and_key(f"{address}/")
    there = dict(objects_below(client, bucket, prefix, **arguments))
    files = [(f"{prefix}{name}", file, file.stat().st_size) for name, file in files_in(path)]
    wanted = [(key, file) for key, file, size in files if there.get(key) != size]
    size = sum(file.stat().st_size for _, file in wanted)
    print(f"Channel {path}: {len(wanted)} of {len(files)} files ({size / 1e6:.1f} MB) to {address}", file=sys.stderr)
    with progress_bar(str(path), size) as progress, ThreadPoolExecutor(_THREADS) as threads:
        more = {"ExtraArgs": dict(arguments), "Callback": progress.update}
        sent = [threads.submit(client.upload_file, str(file), bucket, key, **more) for key, file in wanted]
        for each in sent:
            each.result()


def files_in(path: Path) -> Iterator[Tuple[str, Path]]:
    """Yield the files in a folder, or a file, in the order of their paths: each with its name there."""
    above, found = (path.parent, [path]) if path.is_file() else (path, sorted(path.rglob("*")))
    for file in found:
        if file.is_file():
            yield file.relative_to(above).as_posix(), file


def progress_bar(name: str, size: int) -> Any:
    """Return a bar for what is transferred, in bytes. It is shown in a terminal only."""
    from tqdm import tqdm

    return tqdm(desc=name, total=size, unit="B", unit_scale=True, disable=None)
