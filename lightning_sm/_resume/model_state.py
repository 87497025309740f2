"""What a restored model needs beside its weights: results of searches, pruning masks; whether its weights changed."""

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.nn.utils import prune

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer import Trainer, callbacks_named, callbacks_of

__all__ = [
    "are_equal",
    "found_by_searches",
    "pruning_state",
    "restore_pruning",
    "restore_searches",
    "restore_weights",
    "sums_of",
    "weight_sums",
]

_MASK = "_mask"
# The attributes of Lightning's _LRFinder that hold its result.
_CURVE = ("mode", "lr_min", "lr_max", "num_training", "results", "_optimal_idx")


# Not searched again in a resumed fit: a search would also leave the optimizers unrestored, as its own ``resume_end``
# drops the checkpoint (``_CheckpointConnector`` in ``lightning/pytorch/trainer/connectors/checkpoint_connector.py``).
def found_by_searches(namespace: Namespace, trainer: Trainer) -> List[Dict[str, Any]]:
    """Return what each ``LearningRateFinder`` and ``BatchSizeFinder`` has found, as plain values."""
    parsing, module = namespace.module("utilities.parsing"), trainer.lightning_module
    results = []
    for callback in _finders(trainer):
        names = [name for name in _attribute_names(callback) if parsing.lightning_hasattr(module, name)]
        values = {name: parsing.lightning_getattr(module, name) for name in names}
        curve = getattr(callback, "optimal_lr", None)
        results.append(
            {
                "values": {name: value for name, value in values.items() if isinstance(value, (int, float))},
                "batch_size": getattr(callback, "optimal_batch_size", None),
                "curve": {name: getattr(curve, name) for name in _CURVE if hasattr(curve, name)},
            }
        )
    return results


def restore_searches(namespace: Namespace, trainer: Trainer, pl_module: Any, saved: List[Mapping[str, Any]]) -> None:
    """Set what was found, and let the callbacks not search at the start of this fit."""
    parsing = namespace.module("utilities.parsing")
    for callback, found in zip(_finders(trainer), saved):
        for name, value in found["values"].items():
            if parsing.lightning_hasattr(pl_module, name):
                parsing.lightning_setattr(pl_module, name, value)
        if found["batch_size"] is not None:
            callback.optimal_batch_size = found["batch_size"]
        if found["curve"]:
            finder = namespace.module("tuner.lr_finder")._LRFinder
            callback.optimal_lr = finder.__new__(finder)
            vars(callback.optimal_lr).update(found["curve"])
        ReplacedMethod(callback, "on_fit_start", lambda *_: None, once=True)


def _finders(trainer: Trainer) -> List[Any]:
    return callbacks_named(trainer, "LearningRateFinder", "BatchSizeFinder")


def _attribute_names(callback: Any) -> List[str]:
    named = getattr(callback, "_attr_name", None) or getattr(callback, "_batch_arg_name", None)
    return [named] if named else ["lr", "learning_rate"]


# ``ModelPruning`` makes its masks permanent in the weights of each checkpoint. A resumed fit would prune anew, among
# those that are left. It also keeps the layers from before the training; from its first pruning on they share their
# memory with the weights (``_copy_param`` in ``lightning/pytorch/callbacks/pruning.py``).
def pruning_state(trainer: Trainer) -> Dict[str, Any]:
    """Return the masks and what they hide, by names, and which layers share their memory with the weights."""
    module = trainer.lightning_module
    parameters = dict(module.named_parameters())
    masks = {name[: -len(_MASK)]: value for name, value in module.named_buffers() if name.endswith(_MASK)}
    masks = {name: mask.detach() for name, mask in masks.items() if f"{name}_orig" in parameters}
    hidden = {name: parameters[f"{name}_orig"].detach()[mask == 0].cpu() for name, mask in masks.items()}
    shared = [index for index, kept, live in _kept_layers(trainer) if kept.data_ptr() == live.data_ptr()]
    return {"masks": {name: mask.cpu() for name, mask in masks.items()}, "hidden": hidden, "shared": shared}


def restore_pruning(trainer: Trainer, saved: Mapping[str, Any]) -> None:
    """Prune parameters by masks, after the optimizers have been restored: their order is that before pruning."""
    if not saved["masks"]:
        return
    modules = dict(trainer.lightning_module.named_modules())
    for path, mask in saved["masks"].items():
        module, _, name = path.rpartition(".")
        if name in dict(modules[module].named_parameters(recurse=False)):
            parameter = getattr(modules[module], name)
            on_device = mask.to(parameter.device)
            prune.custom_from_mask(modules[module], name, on_device)
            parameter.data[on_device == 0] = saved["hidden"][path].to(parameter.device)
    for index, kept, live in _kept_layers(trainer):
        if index in saved["shared"]:
            kept.data = live.data


def _kept_layers(trainer: Trainer) -> Iterator[Tuple[int, Any, Any]]:
    """Index, kept tensor and weight of each parameter that ``ModelPruning`` callbacks prune."""
    for callback in callbacks_of(trainer):
        pruned = getattr(callback, "_parameters_to_prune", ())
        for layer in (getattr(callback, "_original_layers", None) or {}).values():
            for index, name in layer["names"]:
                module = pruned[index][0]
                live = getattr(module, f"{name}_orig", None)
                yield index, getattr(layer["data"], name), getattr(module, name) if live is None else live


def restore_weights(pl_module: Any, state: Mapping[str, Any]) -> None:
    """Load weights again that hooks have changed between the restore and the first batch.

    Such as ``on_fit_start`` of a callback that swaps averaged weights in for the validation before the training, or of
    a model that begins with pretrained ones.
    """

    def is_plain(value: Any) -> bool:
        return type(value) is torch.Tensor and value.layout is torch.strided and value.device.type != "meta"

    now = {name: each for name, each in pl_module.state_dict().items() if is_plain(each)}
    saved = {name: state[name] for name, each in now.items() if is_plain(state.get(name))}
    changed = {name: each for name, each in saved.items() if not torch.equal(each.to(now[name]), now[name])}
    if changed:
        pl_module.load_state_dict(changed, strict=False)


def sums_of(pl_module: Any) -> List[Any]:
    """Return the sums of a model's parameters and buffers, as :func:`weight_sums`."""
    return weight_sums((*pl_module.parameters(), *pl_module.buffers()))


def weight_sums(tensors: Iterable[Any]) -> List[Any]:
    """Return a sum of each tensor, which changes when callbacks replace weights, without waiting for their device.

    Args:
        tensors: Parameters, buffers or states of optimizers; of sharded ones the part of this rank counts.
    """
    sums: List[Any] = []
    with torch.no_grad():
        for tensor in map(_own_part, tensors):
            if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_complex():
                continue
            if tensor.device.type in ("cpu", "cuda"):
                sums.extend(_sums_of_memory(tensor.detach()))
            else:
                precise = torch.float32 if tensor.device.type == "mps" else torch.float64
                sums.append(tensor.detach().sum(dtype=precise))
    return sums


def _sums_of_memory(tensor: Any) -> Tuple[Any, Any]:
    """The sums of a tensor's memory as integers: a fifth of the time of a sum of floats in double precision."""
    octets = tensor.contiguous().flatten().view(torch.uint8)
    if octets.storage_offset() % 8:  # integers of 8 bytes begin at multiples of 8 only
        octets = octets.clone()
    whole = octets.numel() // 8 * 8
    return octets[:whole].view(torch.int64).sum(), octets[whole:].sum()


def _own_part(tensor: Any) -> Any:
    """This rank's shard of a DTensor, or of a parameter of DeepSpeed's stage 3, which it empties at times."""
    if hasattr(tensor, "to_local"):
        return tensor.to_local()
    shard = getattr(tensor, "ds_tensor", None)
    if shard is None:
        return tensor
    # The last shards are padded with whatever is in memory.
    start = dist.get_rank(tensor.ds_process_group) * shard.numel()
    return shard.flatten()[: max(0, tensor.ds_numel - start)]


def are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two results of :func:`weight_sums` are the same; NaN is equal to itself."""
    return [repr(each.item()) for each in one] == [repr(each.item()) for each in other]
