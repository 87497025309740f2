"""Reads the whole model from a sharded checkpoint, a folder, on one rank: by torch's or DeepSpeed's own code."""

import copy
import io
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from inspect import signature
from typing import Any, Dict, Optional

from lightning_sm._lightning.checkpoints import reasons_of
from lightning_sm._resume.record import CorruptedError, read_manifest
from lightning_sm.errors import ExportError

__all__ = ["folder_problem", "read_folder"]

# torch.distributed.checkpoint (DCP), by which FSDP and FSDP2 save, and DeepSpeed.
_INDEX, _LATEST = ".metadata", "latest"
# What smp.save_checkpoint names the newest part of a checkpoint by.
_NEWEST = "newest"
# Everything but the state of model and optimizers: ``lightning/fabric/strategies/fsdp.py``.
_META = "meta.pt"
# What Lightning gives to DeepSpeed, which puts its own entries beside it: ``strategies/deepspeed.py``.
_LIGHTNINGS = re.compile(
    r"epoch|global_step|loops|callbacks|lr_schedulers|pytorch-lightning_version|.*hyper_parameters.*"
)


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
    except (CorruptedError, OSError) as error:
        return str(error)
    if not os.path.isfile(os.path.join(folder, _INDEX)):
        return None if os.path.isfile(os.path.join(folder, _LATEST)) else "it is a folder of an unknown format"
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        names = {info.relative_path for info in FileSystemReader(folder).read_metadata().storage_data.values()}
    except Exception as error:  # corrupted bytes may be read as any opcode of pickle
        return f"its {_INDEX} cannot be read ({type(error).__name__}: {error})"
    missing = sorted(name for name in names if not os.path.isfile(os.path.join(folder, name)))
    return f"it is incomplete: {missing[0]} is missing" if missing else None


def read_folder(folder: str, last: Dict[str, Any]) -> Dict[str, Any]:
    """Read a sharded checkpoint as Lightning's checkpoint of an unsharded model, without the optimizers' states.

    Args:
        folder: The checkpoint, with the shards of all ranks.
        last: The whole model as it is, with the names, shapes and types to read. It is emptied, so that the host does
            not hold both.

    Raises:
        ExportError: It cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    read = _read_dcp if os.path.isfile(os.path.join(folder, _INDEX)) else _read_deepspeed
    try:
        if os.path.isfile(os.path.join(folder, _NEWEST)):
            raise CorruptedError("it is a folder of AWS's model parallel library, which only that library reads")
        return read(folder, last)
    except (Exception, CheckpointException) as error:  # torch's is no Exception
        raise ExportError(
            f"The best checkpoint {folder} cannot be consolidated ({' '.join(reasons_of(error).split())[:300]}).",
            hint="Set sagemaker.export_weights to last. The checkpoint is kept.",
        ) from error


def _read_dcp(folder: str, last: Dict[str, Any]) -> Dict[str, Any]:
    import torch
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(folder)
    # What Lightning puts the model under: FSDP2, FSDP.
    key = (
        "state_dict"
        if any(name.startswith("state_dict.") for name in reader.read_metadata().state_dict_metadata)
        else "model"
    )
    whole: Dict[int, Any] = {}
    state_dict = {}
    for name in list(last):
        value = last.pop(name)
        if isinstance(value, torch.Tensor):
            # Memory that is not written yet takes no room.
            state_dict[name] = whole.setdefault(id(value), (torch.empty_like(value, device="cpu"), value))[0]
        else:
            state_dict[name] = copy.deepcopy(value)
    del whole
    # torch 2.1 to 2.5 know no_dist in the older function only.
    load: Any = state_dict_loader.load
    if "no_dist" not in signature(load).parameters:
        load = state_dict_loader.load_state_dict
    content = {key: state_dict}
    load(content, storage_reader=reader, no_dist=True)
    meta = os.path.join(folder, _META)
    rest = torch.load(meta, map_location="cpu", weights_only=False) if os.path.isfile(meta) else {}
    return {**rest, "state_dict": content[key]}


def _read_deepspeed(folder: str, last: Dict[str, Any]) -> Dict[str, Any]:
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as read

    with open(os.path.join(folder, _LATEST), encoding="utf-8") as file:
        tag = file.read().strip()
    name = min(name for name in os.listdir(os.path.join(folder, tag)) if name.endswith("_model_states.pt"))
    rest = torch.load(os.path.join(folder, tag, name), map_location="cpu", weights_only=False)
    # With stage 2 the frozen parameters may be left out.
    lacks_frozen = bool(rest.get("frozen_param_shapes")) and not rest.get("frozen_param_fragments")
    options = {"exclude_frozen_parameters": True} if lacks_frozen else {}
    if "lazy_mode" in signature(read).parameters:
        options["lazy_mode"] = True
    # It prints what it does.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        found = read(folder, tag, **options)
    whole: Dict[int, Any] = {}
    state_dict: Dict[str, Any] = {}
    for name in list(last):
        value, saved = last.pop(name), found.get(name)
        if not isinstance(value, torch.Tensor):
            state_dict[name] = rest["module"].get(name, value)
        elif saved is not None:
            if id(saved) not in whole:
                # Of a lazy value the parts are mapped files, which are read here.
                whole[id(saved)] = saved.contiguous().clone()
                if not value.is_floating_point():  # older versions convert all buffers
                    whole[id(saved)] = whole[id(saved)].to(value.dtype)
            state_dict[name] = whole[id(saved)]
        elif lacks_frozen and name in rest["frozen_param_shapes"]:
            state_dict[name] = value
        else:
            raise CorruptedError(f"it does not hold {name}")
    checkpoint = {name: value for name, value in rest.items() if _LIGHTNINGS.fullmatch(str(name))}
    return {**checkpoint, "state_dict": state_dict}
