"""Reads the whole model from a sharded checkpoint, which is a folder: without a process group and without a GPU.

``torch.distributed.checkpoint`` (DCP; FSDP and FSDP2) is read here, entry by entry, so that the optimizers' shards are
not read and no code that the files name is run; DeepSpeed's folder by DeepSpeed's own ``zero_to_fp32``.
"""

import io
import os
import pickle
import re
from contextlib import redirect_stderr, redirect_stdout
from inspect import signature
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._resume.record import CorruptedError, read_manifest
from lightning_sm.errors import ExportError

__all__ = ["folder_problem", "read_folder"]

_INDEX = ".metadata"
# Everything but the state of model and optimizers: ``lightning/fabric/strategies/fsdp.py``.
_META = "meta.pt"
_LATEST = "latest"
# What Lightning puts the model under: FSDP2, FSDP.
_MODEL_KEYS = ("state_dict", "model")
_PREFIX = re.compile(r"^(?:_forward_module|module)\.")
# The classes of DCP's index; beside them it has sizes and types of tensors.
_INDEX_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed._shard.sharded_tensor.metadata",
)
# What Lightning gives to DeepSpeed, which puts its own entries beside it: ``strategies/deepspeed.py``.
_LIGHTNINGS = re.compile(
    r"epoch|global_step|loops|callbacks|lr_schedulers|pytorch-lightning_version|.*hyper_parameters.*"
)


class _Unknown:
    """Stands for an object that is neither of DCP nor a plain value, and ignores what it is given."""

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


class _IndexUnpickler(pickle.Unpickler):
    """Returns DCP's own classes and :class:`_Unknown` for everything else."""

    def find_class(self, module: str, name: str) -> Any:
        import importlib

        import torch

        if module == "torch":
            found = vars(torch).get(name)
            if name == "Size" or isinstance(found, (torch.dtype, torch.layout)):
                return found
        if module in _INDEX_MODULES:
            found = vars(importlib.import_module(module)).get(name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        return _Unknown


def folder_problem(folder: str) -> Optional[str]:
    """Why a folder is not a whole sharded checkpoint on this host; ``None`` if it is.

    Args:
        folder: The checkpoint. With several hosts and no common file system it holds this host's shards only, or after
            a restart those of other hosts from an older save, which only their CRC-32 tells apart.
    """
    try:
        record = read_manifest(folder)
        if record is not None:
            return record.problem(folder)
        if os.path.isfile(os.path.join(folder, _LATEST)):
            return None
        if not os.path.isfile(os.path.join(folder, _INDEX)):
            return "it is a folder of an unknown format"
        for _, _, info in _entries(_read_index(folder)):
            path = os.path.join(folder, info.relative_path)
            if not os.path.isfile(path) or os.path.getsize(path) < info.offset + info.length:
                return f"it is incomplete: {info.relative_path} is missing or truncated"
    except (CorruptedError, OSError) as error:
        return str(error)
    return None


def read_folder(
    folder: str, *, weights_only: bool, frozen: Mapping[str, Any], whole_numbers: Mapping[str, Any]
) -> Dict[str, Any]:
    """Read a sharded checkpoint as Lightning's checkpoint of an unsharded model, without the optimizers' states.

    Args:
        folder: The checkpoint, with the shards of all ranks.
        weights_only: Whether to refuse what needs code of the file to be run.
        frozen: Parameters that were not trained; DeepSpeed may leave them out.
        whole_numbers: The types of the entries that are no floating point numbers, which older DeepSpeeds convert.

    Raises:
        ExportError: It cannot be read, or only by running code.
    """
    try:
        if os.path.isfile(os.path.join(folder, _INDEX)):
            return _read_dcp(folder, weights_only)
        if weights_only:
            raise ExportError(
                f"The best checkpoint {folder} is DeepSpeed's, which cannot be read with weights_only=True.",
                hint="Set sagemaker.export_weights to last, or sagemaker.resume_weights_only to false.",
            )
        return _read_deepspeed(folder, frozen, whole_numbers)
    except ExportError:
        raise
    except Exception as error:  # DCP, DeepSpeed and pickle each have exceptions of their own
        raise ExportError(
            f"The best checkpoint {folder} cannot be consolidated ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}).",
            hint="Set sagemaker.export_weights to last. The checkpoint is kept.",
        ) from error


def _read_index(folder: str) -> Any:
    with open(os.path.join(folder, _INDEX), "rb") as file:
        try:
            index = _IndexUnpickler(file).load()
        except Exception as error:  # corrupted bytes may be read as any opcode
            raise CorruptedError(f"its {_INDEX} cannot be read ({type(error).__name__}: {error})") from error
    if not hasattr(index, "storage_data"):
        raise CorruptedError(f"its {_INDEX} has an unknown format")
    return index


def _entries(index: Any) -> Iterator[Tuple[str, Tuple[int, ...], Any]]:
    """The name, offset in its tensor, and place in the files of each entry of the model."""
    for entry, info in index.storage_data.items():
        if _path(index, entry.fqn)[0] in _MODEL_KEYS:
            yield entry.fqn, tuple(entry.offset or ()), info


def _path(index: Any, fqn: str) -> Tuple[Any, ...]:
    """Where an entry stood in the nested dict that was saved."""
    return tuple((index.planner_data or {}).get(fqn) or fqn.split(".", 1))


def _read_dcp(folder: str, weights_only: bool) -> Dict[str, Any]:
    import torch

    index = _read_index(folder)
    places: Dict[str, List[Tuple[Tuple[int, ...], Any]]] = {}
    for fqn, offset, info in _entries(index):
        places.setdefault(fqn, []).append((offset, info))
    state_dict: Dict[str, Any] = {}
    # In the order of the files, whose entries stand one behind the other.
    for fqn, found in places.items():
        stored = index.state_dict_metadata[fqn]
        if hasattr(stored, "chunks"):
            whole = torch.empty(tuple(stored.size), dtype=stored.properties.dtype)
            for offset, info in found:
                chunk = _load(_bytes(folder, info), weights_only=True)
                whole[tuple(slice(start, start + size) for start, size in zip(offset, chunk.shape))] = chunk
            _insert(state_dict, _path(index, fqn)[1:], whole)
        else:
            _insert(state_dict, _path(index, fqn)[1:], _load_object(folder, fqn, found[0][1], weights_only))
    checkpoint: Dict[str, Any] = {}
    meta = os.path.join(folder, _META)
    if os.path.isfile(meta):
        with open(meta, "rb") as file:
            checkpoint = dict(_load(file, weights_only=weights_only))
    checkpoint["state_dict"] = {_PREFIX.sub("", str(name)): value for name, value in state_dict.items()}
    return checkpoint


def _bytes(folder: str, info: Any) -> io.BytesIO:
    if getattr(info, "transform_descriptors", None):
        raise CorruptedError(f"{info.relative_path} is compressed")
    # The index must not lead out of the folder.
    with open(os.path.join(folder, os.path.basename(info.relative_path)), "rb") as file:
        file.seek(info.offset)
        return io.BytesIO(file.read(info.length))


def _load_object(folder: str, fqn: str, info: Any, weights_only: bool) -> Any:
    try:
        return _load(_bytes(folder, info), weights_only=True)
    except pickle.UnpicklingError as error:
        if weights_only:
            raise ExportError(
                f"The entry {fqn} of the best checkpoint {folder} cannot be loaded with weights_only=True, which "
                "sagemaker.resume_weights_only requires.",
                hint="Set sagemaker.export_weights to last, or return plain values from get_extra_state().",
            ) from error
        # This run wrote the file, so it is trusted unless the user restricts loading.
        return _load(_bytes(folder, info), weights_only=False)


def _load(file: Any, *, weights_only: bool) -> Any:
    import torch

    return torch.load(file, map_location="cpu", weights_only=weights_only)


def _insert(target: Any, path: Tuple[Any, ...], value: Any) -> None:
    """Put a value into nested dicts and lists, where it stood before DCP flattened them."""
    for key, following in zip(path, path[1:]):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(target, list):
            target.extend([None] * (key + 1 - len(target)))
            target[key] = empty if target[key] is None else target[key]
            target = target[key]
        else:
            target = target.setdefault(key, empty)
    if isinstance(target, list):
        target.extend([None] * (path[-1] + 1 - len(target)))
    target[path[-1]] = value


def _read_deepspeed(folder: str, frozen: Mapping[str, Any], whole_numbers: Mapping[str, Any]) -> Dict[str, Any]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as read

    with open(os.path.join(folder, _LATEST), encoding="utf-8") as file:
        tag = file.read().strip()
    names = sorted(name for name in os.listdir(os.path.join(folder, tag)) if name.endswith("_model_states.pt"))
    rest = _load(os.path.join(folder, tag, names[0]), weights_only=False)
    lacks_frozen = bool(rest.get("frozen_param_shapes")) and not rest.get("frozen_param_fragments")
    options = {"exclude_frozen_parameters": lacks_frozen} if lacks_frozen else {}
    if "lazy_mode" in signature(read).parameters:
        options["lazy_mode"] = True
    # It prints what it does.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        found = read(folder, tag, **options)
    whole: Dict[int, Any] = {}
    state_dict: Dict[str, Any] = {}
    for name in list(found):
        value = found.pop(name)
        short = _PREFIX.sub("", name)
        if id(value) not in whole:
            # Of a lazy value the parts are mapped files, which are read here.
            whole[id(value)] = (value, value.contiguous().clone().to(whole_numbers.get(short, value.dtype)))
        state_dict[short] = whole[id(value)][1]
    for name, value in rest["module"].items():
        if not hasattr(value, "numel"):
            state_dict[_PREFIX.sub("", name)] = value
    for name, value in frozen.items():
        state_dict.setdefault(name, value)
    checkpoint = {name: value for name, value in rest.items() if _LIGHTNINGS.fullmatch(str(name))}
    return {**checkpoint, "state_dict": state_dict}
