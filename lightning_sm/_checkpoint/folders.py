"""Sharded checkpoints: folders that ``torch.distributed.checkpoint`` (DCP) or DeepSpeed wrote, read without their code.

What a folder is follows from its manifest where there is one, and otherwise from the names of its files.
"""

import io
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Tuple

from lightning_sm._checkpoint.integrity import (
    META_FILE,
    CorruptedError,
    classes_in_pickle,
    dcp_entries,
    read_contents,
    read_pickle,
    state_of,
    verify_and_hash,
    verify_and_hash_directory,
    weights_only_error,
)
from lightning_sm._checkpoint.manifest import MANIFEST, Manifest, ShardFile, file_crc32

__all__ = [
    "UPLOAD_KEY",
    "ShardedFolder",
    "code_in_folder",
    "has_manifest",
    "is_here",
    "is_intact",
    "unlisted_digest",
    "upload_problem",
]

#: Key, in the contents of a checkpoint that is uploaded file by file, with the ``save_id`` of its manifest.
UPLOAD_KEY = "lightning_sm_upload"
_LATEST = "latest"
_INDEX = ".metadata"
# Lightning's FSDP and FSDP2 strategies name the weights differently in the index.
_DCP_KINDS = {"model": "fsdp", "state_dict": "fsdp2"}
# Whose classes DCP's own index names.
_DCP_MODULES = ("torch.distributed.checkpoint.", "torch.distributed.tensor.", "collections")
_PLAIN = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13
        ("pathlib", "Path"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
    }
)
_DCP_SHARD = re.compile(r"__(\d+)_\d+\.distcp")
_ZERO_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")


@dataclass(frozen=True)
class ShardedFolder:
    """A sharded checkpoint, as far as the names, sizes and the small files of this host tell.

    Args:
        path: The folder.
        format: ``dcp`` or ``deepspeed``.
        manifest: Its manifest; ``None`` in a folder that plain Lightning wrote.
        missing: The files of the manifest that are absent or have another size than they were written with.
    """

    path: str
    format: str
    manifest: Optional[Manifest] = None
    missing: Tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str) -> "ShardedFolder":
        """Return what a folder holds.

        Raises:
            CorruptedError: Its manifest cannot be read.
            OSError: The folder cannot be read.
        """
        manifest = Manifest.read(path)
        if manifest is None:
            by_deepspeed = os.path.isfile(os.path.join(path, _LATEST)) or _tag_of(path) is not None
            return cls(path, "deepspeed" if by_deepspeed else "dcp")
        missing = tuple(file.name for file in manifest.files if not is_here(path, file))
        return cls(path, manifest.format, manifest, missing)

    @property
    def problem(self) -> Optional[str]:
        """Why the folder is not whole, by names and sizes; ``None`` if it may be."""
        if self.manifest is None:
            return _unlisted_deepspeed_problem(self.path) if self.format == "deepspeed" else None
        if self.missing:
            absent = [name for name in self.missing if not os.path.isfile(os.path.join(self.path, name))]
            if not absent:
                return f"it is truncated, or of another save: {self.missing[0]} has another size than in its {MANIFEST}"
            count, names = len(self.manifest.files), ", ".join(absent[:3]) + (" …" if absent[3:] else "")
            verb = "is" if len(absent) == 1 else "are"
            return f"it is incomplete: {len(absent)} of {count} files of its manifest {verb} missing ({names})"
        return self.extra_problem

    @property
    def extra_problem(self) -> Optional[str]:
        """The file that DeepSpeed, which searches its folder by patterns, would read although it is of another save.

        DCP opens the files that its index names.
        """
        if self.format != "deepspeed" or self.manifest is None:
            return None
        names = {file.name for file in self.manifest.files}
        for folder in sorted({os.path.dirname(name) for name in names}):
            for entry in sorted(_entries(os.path.join(self.path, folder))):
                name = os.path.join(folder, entry)
                if entry.endswith(".pt") and not entry.startswith(".") and name not in names:
                    return f"it holds {name}, which its manifest does not name"
        return None

    @property
    def contents_path(self) -> str:
        """The file that holds what is neither weights nor optimizer states.

        Raises:
            CorruptedError: It is missing.
        """
        if self.format == "dcp":
            if not os.path.isfile(os.path.join(self.path, META_FILE)):
                raise CorruptedError(f"it is incomplete: {META_FILE} is missing")
            return os.path.join(self.path, META_FILE)
        tag = _read_tag(self.path)
        for prefix in ("", "zero_pp_rank_0_"):
            found = os.path.join(self.path, tag, f"{prefix}mp_rank_00_model_states.pt")
            if os.path.isfile(found):
                return found
        raise CorruptedError(f"it is incomplete: {tag}/mp_rank_00_model_states.pt is missing")

    def saved_by(self, contents: Dict[Any, Any]) -> str:
        """Which strategy wrote it: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_2``; ``dcp`` of an unknown one.

        Args:
            contents: What :func:`read_contents` returns for :attr:`contents_path`.
        """
        if self.format == "deepspeed":
            zero = state_of(state_of(contents.get("ds_config")).get("zero_optimization"))
            return f"deepspeed_stage_{zero.get('stage', 0)}"
        try:
            with open(os.path.join(self.path, _INDEX), "rb") as file:
                entries = state_of(state_of(read_pickle(file.read())).get("state_dict_metadata"))
        except (CorruptedError, OSError):
            return "dcp"  # the check of the whole folder says what is wrong
        first = {str(key).partition(".")[0] for key in entries}
        return next((kind for prefix, kind in _DCP_KINDS.items() if prefix in first), "dcp")

    def world_size(self, contents: Dict[Any, Any]) -> Optional[int]:
        """The number of processes that saved it; ``None`` if it is unknown."""
        if self.manifest is not None:
            return self.manifest.world_size
        if self.format == "deepspeed":
            return _deepspeed_world(contents)
        ranks = [int(match.group(1)) for match in map(_DCP_SHARD.fullmatch, _entries(self.path)) if match]
        return max(ranks) + 1 if ranks else None


def upload_problem(folder: ShardedFolder, contents: Dict[Any, Any]) -> Optional[str]:
    """Why a folder whose files were uploaded one by one is not whole: its manifest is the last of them.

    Args:
        folder: The folder.
        contents: What :func:`read_contents` returns for its ``contents_path``.
    """
    if folder.manifest is None and UPLOAD_KEY in contents:
        return f"its {MANIFEST} is missing: its upload was interrupted"
    return None


def is_here(folder: str, file: ShardFile) -> bool:
    """Whether a file of a manifest is in the folder, with its size."""
    path = os.path.join(folder, file.name)
    return os.path.isfile(path) and os.path.getsize(path) == file.size


def is_intact(path: str, file: ShardFile) -> bool:
    """Whether a path is a file of a manifest, by its size and CRC-32."""
    try:
        return os.path.getsize(path) == file.size and file_crc32(path) == file.crc32
    except OSError:
        return False


def has_manifest(path: str) -> bool:
    """Whether a path is a sharded checkpoint with a manifest, also with one that cannot be read."""
    try:
        return Manifest.read(path) is not None
    except NotADirectoryError:
        return False
    except (CorruptedError, OSError):
        return os.path.isdir(path)


def _entries(folder: str) -> Tuple[str, ...]:
    try:
        return tuple(os.listdir(folder))
    except OSError:
        return ()


def _tag_of(path: str) -> Optional[str]:
    """The folder with DeepSpeed's files, where the file that names it is missing."""
    for entry in sorted(_entries(path)):
        if any(name.endswith("_states.pt") for name in _entries(os.path.join(path, entry))):
            return entry
    return None


def _read_tag(path: str) -> str:
    try:
        with open(os.path.join(path, _LATEST), encoding="utf-8") as file:
            return os.path.basename(file.read().strip())
    except FileNotFoundError as error:
        raise CorruptedError(f"it is incomplete: {_LATEST} is missing") from error
    except UnicodeDecodeError as error:
        raise CorruptedError(f"its {_LATEST} is corrupted") from error


def _deepspeed_world(contents: Dict[Any, Any]) -> Optional[int]:
    sizes = contents.get("dp_world_size"), contents.get("mp_world_size", 1)
    data, model = sizes
    return data * model if isinstance(data, int) and isinstance(model, int) else None


def _unlisted_deepspeed_problem(path: str) -> Optional[str]:
    """Compare the files of a folder without a manifest with the number of processes that one of them names."""
    try:
        folder = ShardedFolder(path, "deepspeed")
        tag, contents = _read_tag(path), read_contents(folder.contents_path)
    except CorruptedError as error:
        return str(error)
    world, stage = _deepspeed_world(contents), folder.saved_by(contents).rpartition("_")[2]
    if world is None or stage == "0":
        return None
    found = {match.groups() for match in map(_ZERO_FILE.fullmatch, _entries(os.path.join(path, tag))) if match}
    data_ranks = contents["dp_world_size"]
    for kind in ("optim", "model") if stage == "3" else ("optim",):
        have = {int(rank) for rank, _, of_kind in found if of_kind == kind}
        lacking = sorted(set(range(data_ranks)) - have)
        if lacking:
            return f"it is incomplete: the {kind} states of rank {lacking[0]} of {data_ranks} are missing"
        if max(have) >= data_ranks:
            return f"it holds the {kind} states of rank {max(have)}, but was saved by {data_ranks} ranks"
    return None


def unlisted_digest(path: str, *, by_deepspeed: bool, check: bool) -> str:
    """Return a SHA-256 of a folder without a manifest, after a check of what its files tell of themselves.

    Args:
        path: The folder.
        by_deepspeed: Whether DeepSpeed wrote it, and not DCP.
        check: Whether to check; without, any folder is accepted.

    Raises:
        CorruptedError: A file is missing, truncated or not as it was written.
    """
    if by_deepspeed and check:
        problem = _unlisted_deepspeed_problem(path)
        if problem is not None:
            raise CorruptedError(problem)
        for file in _pt_files(path):
            try:
                verify_and_hash(file)
            except CorruptedError as error:
                raise CorruptedError(f"its {os.path.relpath(file, path)}: {error}") from error
    return verify_and_hash_directory(path, check=check and not by_deepspeed)


def _is_dtype(module: str, name: str) -> bool:
    import torch

    return module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)


def _pt_files(path: str) -> Iterator[str]:
    for folder, _, names in os.walk(path):
        yield from sorted(os.path.join(folder, name) for name in names if name.endswith(".pt"))


def code_in_folder(folder: ShardedFolder) -> Optional[str]:
    """Why loading a sharded checkpoint may run code that it names, beside the file with its contents.

    DeepSpeed loads its files with ``weights_only=False``. DCP loads its index so, and what is not a tensor.

    Args:
        folder: A folder of which all files are here and intact.

    Returns:
        ``None`` if it names nothing but torch's own classes of checkpoints.
    """
    if folder.format == "deepspeed":
        for file in _pt_files(folder.path):
            error = weights_only_error(file)
            if error is not None:
                return f"DeepSpeed loads {os.path.relpath(file, folder.path)} with weights_only=False: {error}"
        return None
    with open(os.path.join(folder.path, _INDEX), "rb") as index:
        for module, name in sorted(classes_in_pickle(index.read())):
            if not (module.startswith(_DCP_MODULES) or (module, name) in _PLAIN or _is_dtype(module, name)):
                return f"DCP loads {_INDEX} with pickle, and it names {module}.{name}"
    for shard, content in dcp_entries(folder.path):
        error = weights_only_error(io.BytesIO(content)) if content.startswith(b"PK") else None
        if error is not None:
            return f"DCP loads an entry of {shard} with weights_only=False: {error}"
    return None
