"""What the service would upload: one archive of all hosts' models, one of their outputs, and the checkpoints."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from ._outcome import Upload
from ._plan import Plan
from ._tree import Tree

__all__ = ["collect"]

_ARCHIVES = (("model.tar.gz", "model"), ("output.tar.gz", "output/data"))


def collect(plan: Plan, tree: Tree, bucket: Optional[Path]) -> Tuple[Tuple[Upload, ...], Tuple[str, ...]]:
    """Make the archives, list what went into them, and warn of names that two hosts wrote."""
    tree.collected.mkdir(parents=True, exist_ok=True)
    uploads: List[Upload] = []
    warnings: List[str] = []
    for archive, folder in _ARCHIVES:
        found = [(host, name, path) for host in plan.request.hosts for name, path in _files(tree.ml(host) / folder)]
        if not found:
            continue
        with tarfile.open(str(tree.collected / archive), "w:gz", compresslevel=1) as packed:
            for host, name, path in found:
                packed.add(str(path), arcname=name)
                uploads.append(Upload(archive, name, path.stat().st_size, host))
        warnings += _clashes(archive, found)
    if bucket is not None:
        uploads += [Upload("checkpoints", name, path.stat().st_size, "all") for name, path in _files(bucket)]
    return tuple(uploads), tuple(warnings)


def _files(folder: Path) -> Iterator[Tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path


def _clashes(archive: str, found: List[Tuple[str, str, Path]]) -> List[str]:
    writers: Dict[str, List[str]] = {}
    for host, name, _ in found:
        writers.setdefault(name, []).append(host)
    return [
        f"{name} in {archive} was written by {', '.join(hosts)}: the service puts all hosts' files into one archive, "
        "so only one of them arrives."
        for name, hosts in writers.items()
        if len(hosts) > 1
    ]
