"""Where a rehearsal keeps its files: one temporary folder, all of it removed at the end."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Tree"]


@dataclass(frozen=True)
class Tree:
    """The folder of one rehearsal. Only this class knows what lies where in it."""

    root: Path

    def ml(self, host: str) -> Path:
        """What ``host`` sees as ``/opt/ml``."""
        return self.root / "hosts" / host / "ml"

    def layer(self, host: str) -> Path:
        """Where ``host`` keeps what it writes anywhere else."""
        return self.root / "hosts" / host / "layer"

    def image(self, host: str) -> Path:
        """The root directory that ``host`` is given."""
        return self.root / "hosts" / host / "image"

    def refusal(self, host: str) -> Path:
        """Why ``host`` was not started, if it was not."""
        return self.root / "hosts" / host / "refusal"

    @property
    def host_folders(self) -> Path:
        """Everything that belongs to single hosts."""
        return self.root / "hosts"

    @property
    def shared(self) -> Path:
        """What stands for S3 on the way in: the source archive and, for SDK v3, its drivers."""
        return self.root / "shared"

    @property
    def archive(self) -> Path:
        """The source archive that the toolkit unpacks."""
        return self.shared / "sourcedir.tar.gz"

    @property
    def python(self) -> Path:
        """The containers' Python environment, which lies beside ``root`` because hosts do not see what is below it."""
        return self.root.with_name(f"{self.root.name}-python")

    @property
    def drivers(self) -> Path:
        """The channel of SDK v3's driver scripts."""
        return self.root / "drivers"

    @property
    def fetched(self) -> Path:
        """What was fetched from S3."""
        return self.root / "fetched"

    @property
    def keys(self) -> Path:
        """The ssh key with which the hosts reach each other."""
        return self.root / "keys"

    @property
    def collected(self) -> Path:
        """What stands for S3 on the way out: archives and checkpoints."""
        return self.root / "collected"

    def write(self, name: str, value: Any) -> None:
        """Keep a value for the other process of this rehearsal. The folder is readable by its owner only."""
        (self.root / f"{name}.pickle").write_bytes(pickle.dumps(value))

    def read(self, name: str) -> Any:
        """The value that the other process kept, or ``None``."""
        path = self.root / f"{name}.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def remove(self) -> None:
        """Remove everything. Safe to call from both processes, in any order."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.python, ignore_errors=True)
