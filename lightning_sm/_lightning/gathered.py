"""The whole model and checkpoint of a sharded strategy, on global rank 0, gathered one parameter at a time.

A rank needs room for one parameter on its device (with FSDP1 for what it wraps together), and global rank 0 for one
copy of the state on the host.
"""

import importlib
import math
import re
import warnings
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

from lightning_sm._lightning.legacy import excess_step, strategy_of
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.strategies import strategy_kind
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log

__all__ = ["full_checkpoint", "full_state_dict"]

# The names of wrappers: Lightning's before 2.1 (``lightning/pytorch/overrides/base.py``), and torch's.
_WRAPPERS = re.compile(r"(?:^_forward_module|\b_fsdp_wrapped_module|\b_checkpoint_wrapped_module)\.")


def full_state_dict(trainer: Trainer) -> Dict[str, Any]:
    """The state dict of the unsharded model, with its names. Collective: every rank must call it.

    With a sharded strategy it is on the CPU of global rank 0 and empty on the other ranks; a tensor that has several
    names stays one tensor. Where a strategy trains with copies of lower precision (DeepSpeed's ``fp16`` and ``bf16``,
    mixed precision of FSDP), the values are those that the optimizer updates. Without sharding the model's own tensors
    are returned, on every rank.

    Args:
        trainer: The trainer, whose strategy has been set up.
    """
    strategy = strategy_of(trainer)
    keep = trainer.is_global_zero
    kind = strategy_kind(strategy)
    if kind == "deepspeed":
        module = strategy.lightning_module
        return _on_rank_zero(
            dict(module.state_dict()),
            keep,
            lambda value, parameter: (
                _whole(value, strategy.root_device, keep)
                if parameter is None
                else _deepspeed_parameter(parameter, keep)
            ),
            _parameters_of(module),
        )
    is_fsdp = kind == "fsdp" and _has_sharded_state()
    if is_fsdp or kind == "fsdp2":
        model = strategy.model
        with _fsdp_state_type(model) if is_fsdp else nullcontext(), _no_deprecations():
            shards = {_WRAPPERS.sub("", name): value for name, value in model.state_dict().items()}
        return _on_rank_zero(
            shards, keep, lambda value, _: _whole(value, strategy.root_device, keep), _parameters_of(model)
        )
    with _unsharded(strategy):
        state_dict: Dict[str, Any] = strategy.lightning_module_state_dict()
    return state_dict


def full_checkpoint(namespace: Namespace, trainer: Any, *, has_ended: bool) -> Dict[str, Any]:
    """What ``Trainer.save_checkpoint`` saves, unsharded on global rank 0. Collective: every rank must call it.

    The states of optimizers are gathered as well, in the form of an unsharded training. Those of DeepSpeed are left
    out, which a log line says: it partitions them as flat buffers, which only its own format can restore.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        has_ended: Whether training has ended.
    """
    strategy = strategy_of(trainer)
    is_deepspeed = strategy_kind(strategy) == "deepspeed"
    with _gathered_methods(strategy, trainer), _unsharded(strategy):
        connector = getattr(trainer, "_checkpoint_connector", None) or trainer.checkpoint_connector
        checkpoint: Dict[str, Any] = connector.dump_checkpoint(weights_only=False)
    if is_deepspeed:
        checkpoint.pop("optimizer_states", None)
        if trainer.is_global_zero:
            log.info("The gathered checkpoint has no optimizer states: DeepSpeed keeps them in a format of its own")
    if has_ended:
        checkpoint["global_step"] -= excess_step(namespace)
    return checkpoint


@contextmanager
def _gathered_methods(strategy: Any, trainer: Any) -> Iterator[None]:
    """Let a strategy return gathered states to Lightning, which puts a checkpoint together with them."""
    replaced = []

    def replace(name: str, function: Callable[..., Any]) -> None:
        replaced.append(ReplacedMethod(strategy, name, function))

    kind = strategy_kind(strategy)
    is_fsdp = kind == "fsdp" and _has_sharded_state()
    if is_fsdp or kind in ("fsdp2", "deepspeed"):
        state_dict = full_state_dict(trainer)
        replace("lightning_module_state_dict", lambda original: state_dict)
    if kind == "deepspeed":
        replace("optimizer_state", lambda original, optimizer: {})
    if is_fsdp:
        keep = trainer.is_global_zero
        replace("optimizer_state", lambda original, optimizer: _numbered(_fsdp_optimizer(strategy, optimizer, keep)))
    if kind == "fsdp2":
        replace("optimizer_state", lambda original, optimizer: _numbered(original(optimizer)))
    try:
        yield
    finally:
        for method in replaced:
            method.undo()


@contextmanager
def _unsharded(strategy: Any) -> Iterator[None]:
    """Make a strategy return full states of what is not gathered here: FSDP2's optimizers, FSDP before torch 2.0."""
    changed = [
        (name, getattr(strategy, name), full)
        for name, sharded, full in (
            ("_state_dict_type", "sharded", "full"),
            ("_save_distributed_checkpoint", True, False),
        )
        if getattr(strategy, name, None) == sharded
    ]
    for name, _, full in changed:
        setattr(strategy, name, full)
    try:
        yield
    finally:
        for name, before, _ in changed:
            setattr(strategy, name, before)


def _has_sharded_state() -> bool:
    """Whether this torch can return FSDP's shards of the optimizers, too, which came with 2.0."""
    fsdp = importlib.import_module("torch.distributed.fsdp")
    return hasattr(fsdp, "ShardedOptimStateDictConfig")


@contextmanager
def _no_deprecations() -> Iterator[None]:
    """Without torch's warnings about its own ``ShardedTensor``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def _fsdp_state_type(model: Any) -> Iterator[None]:
    """Let FSDP return shards on the host, and whole tensors of modules that it does not shard.

    Its full state dict has crashed processes on CPUs, and needs a whole copy on the device.
    """
    from torch.distributed import fsdp

    wrapper = fsdp.FullyShardedDataParallel
    # With one process, FSDP changes the strategy to this one.
    whole = [each for each in wrapper.fsdp_modules(model) if each.sharding_strategy.name == "NO_SHARD"]
    on_cpu = any(parameter.device.type == "cpu" for parameter in model.parameters())
    if whole:
        options: Any = (
            fsdp.StateDictType.FULL_STATE_DICT,
            fsdp.FullStateDictConfig(offload_to_cpu=not on_cpu, rank0_only=False),
            fsdp.FullOptimStateDictConfig(offload_to_cpu=not on_cpu, rank0_only=False),
        )
    else:
        options = (
            fsdp.StateDictType.SHARDED_STATE_DICT,
            fsdp.ShardedStateDictConfig(offload_to_cpu=True),
            fsdp.ShardedOptimStateDictConfig(offload_to_cpu=True),
        )
    with wrapper.state_dict_type(model, *options):
        yield


def _fsdp_optimizer(strategy: Any, optimizer: Any, keep: bool) -> Dict[str, Any]:
    """The state of an optimizer under FSDP, as the unsharded module's optimizer would return it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    # Lightning wraps the optimizers that it gives to users.
    optimizer = getattr(optimizer, "_optimizer", optimizer)
    with _fsdp_state_type(strategy.model), _no_deprecations():
        shards = FullyShardedDataParallel.optim_state_dict(strategy.model, optimizer)
    state: Dict[str, Any] = {}
    for name in list(shards["state"]):
        values = shards["state"].pop(name)
        whole = _on_rank_zero(values, keep, lambda value, _: _whole(value, strategy.root_device, keep), {})
        if keep:
            state[name] = whole
    if not keep:
        return {}
    order = {name: index for index, name in enumerate(_parameters_of(strategy.lightning_module))}
    groups = [dict(group) for group in shards["param_groups"]]
    for group, own in zip(groups, optimizer.param_groups):
        if len(group["params"]) != len(own["params"]):
            # Flat parameters: what each of them holds is in the order of the wrapping, not of the module.
            group["params"] = sorted(group["params"], key=lambda name: order.get(name, len(order)))
    return {"state": state, "param_groups": groups}


def _numbered(optimizer_state: Dict[str, Any]) -> Dict[str, Any]:
    """The state of an optimizer with its parameters numbered as torch numbers them, whatever they are named by."""
    names = [name for group in optimizer_state.get("param_groups", ()) for name in group["params"]]
    if not names:
        return optimizer_state
    numbers = {name: number for number, name in enumerate(names)}
    return {
        **optimizer_state,
        "state": {numbers[name]: optimizer_state["state"][name] for name in names if name in optimizer_state["state"]},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]}
            for group in optimizer_state["param_groups"]
        ],
    }


def _parameters_of(module: Any) -> Dict[str, Any]:
    """The parameters of a module by all their names, which a state dict has them by."""
    return {
        _WRAPPERS.sub("", f"{prefix}.{name}" if prefix else name): parameter
        for prefix, child in module.named_modules(remove_duplicate=False)
        for name, parameter in vars(child)["_parameters"].items()
        if parameter is not None
    }


def _on_rank_zero(
    values: Dict[str, Any], keep: bool, gather: Callable[[Any, Any], Any], parameters: Mapping[str, Any]
) -> Dict[str, Any]:
    """Gather one value after the other, and drop what it was gathered from. Collective: every rank must call it.

    Args:
        values: The values by name; it is emptied.
        keep: Whether this is global rank 0.
        gather: Called with a value and, if it is one, the parameter; returns it whole on global rank 0.
        parameters: The module's parameters by name; one that has several names is gathered once.
    """
    gathered: Dict[str, Any] = {}
    seen: Dict[int, Any] = {}
    for name in list(values):
        value, parameter = values.pop(name), parameters.get(name)
        if parameter is None or id(parameter) not in seen:
            whole = gather(value, parameter)
            if parameter is not None:
                seen[id(parameter)] = whole
        else:
            whole = seen[id(parameter)]
        if keep:
            gathered[name] = whole
    return gathered


def _whole(value: Any, device: Any, keep: bool) -> Any:
    """A value on global rank 0's CPU, and ``None`` on the others. Collective for shards."""
    import torch

    if hasattr(value, "local_shards"):
        with _no_deprecations():
            return _whole_of_sharded_tensor(value, device, keep)
    if hasattr(value, "full_tensor"):
        mesh_type = value.device_mesh.device_type
        # Offloaded parameters are on the CPU, where the backend of the mesh does not communicate.
        on_device = value.detach() if value.device.type == mesh_type else value.detach().to(mesh_type)
        return _received(on_device.full_tensor(), keep)
    if not keep:
        return None
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _whole_of_sharded_tensor(value: Any, device: Any, keep: bool) -> Any:
    """Gather a ``ShardedTensor`` by the one collective with which FSDP itself gathers parameters."""
    import torch
    import torch.distributed as dist

    group: Any = value._process_group or dist.group.WORLD
    shards = value.metadata().shards_metadata
    length = max(math.prod(shard.shard_sizes) for shard in shards)
    row = torch.zeros(length, dtype=value.dtype, device=device)
    for local in value.local_shards():
        row[: local.tensor.numel()] = local.tensor.detach().flatten().to(device)
    rows = torch.empty(length * dist.get_world_size(group), dtype=value.dtype, device=device)
    dist.all_gather_into_tensor(rows, row, group=group)
    if not keep:
        return _received(rows, keep)
    rows = rows.cpu().reshape(-1, length)
    whole = torch.empty(tuple(value.size()), dtype=value.dtype)
    for shard in shards:
        place = tuple(slice(start, start + size) for start, size in zip(shard.shard_offsets, shard.shard_sizes))
        owner = dist.get_group_rank(group, shard.placement.rank())
        whole[place] = rows[owner, : math.prod(shard.shard_sizes)].reshape(tuple(shard.shard_sizes))
    return whole


def _received(value: Any, keep: bool) -> Optional[Any]:
    """A gathered tensor on global rank 0's CPU.

    The others wait until it has arrived. Otherwise they would queue the collectives of all parameters at once, and the
    last one's timeout, which counts from then, would run out while rank 0 still copies the first ones.
    """
    if keep:
        return value.detach().cpu()
    if value.numel():
        value.detach().flatten()[:1].cpu()
    return None


def _deepspeed_parameter(parameter: Any, keep: bool) -> Any:
    import deepspeed
    import torch

    if parameter.dtype != torch.float32 and parameter.requires_grad:
        # Its optimizer updates a copy in single precision, in partitions.
        master = deepspeed.utils.safe_get_full_fp32_param(parameter)
        is_part = hasattr(parameter, "ds_id")
        # At the end of training a callback may have put averages in the place of the weights.
        if master is not None and (is_part or torch.equal(master.to(parameter), parameter.detach())):
            return _received(master, keep)
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().cpu() if keep else None
    with deepspeed.zero.GatheredParameters([parameter]):
        # The gathered values are released when the context is left, on a CPU as well.
        return _received(parameter.detach().clone() if keep else parameter, keep)
