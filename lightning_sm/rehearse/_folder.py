"""The temporary folder of a rehearsal, and what it holds for each host: the files below ``/opt/ml``."""

import json
import os
import pickle
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from lightning_sm.rehearse._request import RehearsalRequest

__all__ = ["RehearsalFolder", "checkpoint_path", "config_files", "pack_source", "write_opt_ml"]

# Not packed: these are not part of a program, and often larger than it.
_NOT_SOURCE = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class RehearsalFolder:
    """The paths of one rehearsal's temporary folder, all of which is removed at the end."""

    root: Path

    def opt_ml(self, host: str) -> Path:
        """``/opt/ml`` of ``host``."""
        return self.hosts / host / "ml"

    def layer(self, host: str) -> Path:
        """The upper layer of ``host``'s root directory: what it writes anywhere else."""
        return self.hosts / host / "layer"

    def rootfs(self, host: str) -> Path:
        """The root directory of ``host``."""
        return self.hosts / host / "image"

    def start_error(self, host: str) -> Path:
        """The file that says why ``host`` was not started, if it was not."""
        return self.hosts / host / "refusal"

    @property
    def hosts(self) -> Path:
        """Everything that belongs to single hosts."""
        return self.root / "hosts"

    @property
    def shared(self) -> Path:
        """In place of S3, for what the containers download: the source archive."""
        return self.root / "shared"

    @property
    def archive(self) -> Path:
        """The source archive that the toolkit unpacks."""
        return self.shared / "sourcedir.tar.gz"

    @property
    def python(self) -> Path:
        """The containers' virtual environment, beside ``root`` because hosts do not see what is below it."""
        return self.root.with_name(f"{self.root.name}-python")

    @property
    def drivers(self) -> Path:
        """The channel with SDK v3's driver scripts."""
        return self.root / "drivers"

    @property
    def fetched(self) -> Path:
        """What was downloaded from S3."""
        return self.root / "fetched"

    @property
    def keys(self) -> Path:
        """The ssh key with which the hosts reach each other."""
        return self.root / "keys"

    @property
    def collected(self) -> Path:
        """In place of S3, for what the service uploads: archives and checkpoints."""
        return self.root / "collected"

    def write(self, name: str, value: Any) -> None:
        """Save a value for another process of this rehearsal. The folder is readable by its owner only."""
        (self.root / f"{name}.pickle").write_bytes(pickle.dumps(value))

    def read(self, name: str) -> Any:
        """Return the value that the other process saved, or ``None``."""
        path = self.root / f"{name}.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def remove(self) -> None:
        """Remove everything. Safe to call from several processes, in any order."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.python, ignore_errors=True)


def config_files(request: RehearsalRequest, host: str, *, interface: str, base: str) -> Dict[str, Dict[str, object]]:
    """Return the content of each file in ``input/config`` of ``host``, whose ``/opt/ml`` is ``base``."""
    files: Dict[str, Dict[str, object]] = {
        "hyperparameters.json": dict(request.hyperparameters),
        "inputdataconfig.json": {channel.name: dict(channel.settings) for channel in request.channels},
        "resourceconfig.json": request.resource_config(host, interface),
    }
    if request.has_checkpoints:
        files["checkpointconfig.json"] = {
            "LocalPath": checkpoint_path(request, base),
            "S3Uri": f"s3://rehearsal/{request.job_name}/checkpoints",
        }
    return files


def checkpoint_path(request: RehearsalRequest, base: str) -> str:
    """Return ``CheckpointConfig.LocalPath`` where ``/opt/ml`` is ``base``."""
    prefix = "/opt/ml/"
    path = request.checkpoint_path
    return f"{base}/{path[len(prefix) :]}" if path.startswith(prefix) else path


def write_opt_ml(request: RehearsalRequest, host: str, opt_ml: Path, *, interface: str, base: str) -> None:
    """Create the folders and files that a container finds below ``/opt/ml`` when it starts."""
    # The output folder matters: without it the toolkit cannot write its failure file and ends with 0.
    for folder in ("input/config", "input/data", "model", "output/data", "code"):
        (opt_ml / folder).mkdir(parents=True, exist_ok=True)
    for name, content in config_files(request, host, interface=interface, base=base).items():
        (opt_ml / "input" / "config" / name).write_text(json.dumps(content), encoding="utf-8")


def pack_source(source: Path, archive: Path) -> Tuple[str, ...]:
    """Pack a source folder as SDK v2 does, and return the names in it."""
    archive.parent.mkdir(parents=True, exist_ok=True)

    def keep(info: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        return None if os.path.basename(info.name) in _NOT_SOURCE else info

    with tarfile.open(str(archive), "w:gz", compresslevel=1) as packed:
        for path in sorted(source.iterdir()):
            packed.add(str(path), arcname=path.name, filter=keep)
        return tuple(packed.getnames())
