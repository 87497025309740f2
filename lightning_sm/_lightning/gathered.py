"""The whole model and checkpoint of a sharded strategy, on global rank 0.

FSDP and FSDP2 gather by torch's full state dict, as Lightning calls it: one parameter after the other (with FSDP what
it wraps together) to global rank 0's host. DeepSpeed's parameters are gathered by its own functions in the same way.
"""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, Tuple

from lightning_sm._lightning.checkpoints import dump_checkpoint
from lightning_sm._lightning.legacy import excess_step, strategy_of
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.strategies import strategy_kind
from lightning_sm._logging import log

__all__ = ["full_checkpoint", "full_state_dict"]


def full_state_dict(trainer: Any) -> Dict[str, Any]:
    """The state dict of the unsharded model, with its names. Collective: every rank must call it.

    With a sharded strategy it is on the CPU of global rank 0, and what other ranks get has no meaning. Where DeepSpeed
    trains with copies of lower precision, the values are those that the optimizer updates. Without sharding the model's
    own tensors are returned, on every rank.

    Args:
        trainer: The trainer, whose strategy has been set up.
    """
    strategy = strategy_of(trainer)
    kind = strategy_kind(strategy)
    if kind == "deepspeed":
        return _deepspeed_state_dict(strategy.lightning_module, keep=trainer.is_global_zero)
    with _full_state(strategy):
        state_dict: Dict[str, Any] = strategy.lightning_module_state_dict()
    first: Dict[int, str] = {}
    for name, parameter in _named_parameters(strategy.lightning_module) if kind else ():
        # torch gathers a parameter that has several names once for each.
        if name in state_dict and first.setdefault(id(parameter), name) in state_dict:
            state_dict[name] = state_dict[first[id(parameter)]]
    return state_dict


def full_checkpoint(namespace: Namespace, trainer: Any, *, has_ended: bool) -> Dict[str, Any]:
    """What ``Trainer.save_checkpoint`` saves, unsharded on global rank 0. Collective: every rank must call it.

    The states of optimizers are gathered as well, in the form of an unsharded training. Those that only their own
    format can restore are left out, which a log line says: DeepSpeed's flat buffers, and those of AWS's model parallel
    library with tensor parallelism or a sharded optimizer.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        has_ended: Whether training has ended.
    """
    strategy = strategy_of(trainer)
    is_deepspeed = strategy_kind(strategy) == "deepspeed"
    # AWS's library gathers no state of an optimizer where it saves folders.
    has_no_state = is_deepspeed or (strategy_kind(strategy) == "smp" and strategy._save_distributed_checkpoint)
    with _full_state(strategy), ExitStack() as undo:
        if is_deepspeed:
            state_dict = full_state_dict(trainer)
            undo.callback(ReplacedMethod(strategy, "lightning_module_state_dict", lambda _: state_dict).undo)
        if has_no_state:
            undo.callback(ReplacedMethod(strategy, "optimizer_state", lambda _, optimizer: {}).undo)
        checkpoint = dump_checkpoint(trainer)
    if has_no_state:
        checkpoint.pop("optimizer_states", None)
        if trainer.is_global_zero:
            owner = "DeepSpeed" if is_deepspeed else "AWS's model parallel library"
            log.info("The gathered checkpoint has no optimizer states: %s keeps them in a format of its own", owner)
    if has_ended:
        checkpoint["global_step"] -= excess_step(namespace)
    return checkpoint


@contextmanager
def _full_state(strategy: Any) -> Iterator[None]:
    """Let Lightning's FSDP and FSDP2 return full states, as they do where they save one file."""
    changed = {
        name: full
        for name, sharded, full in (
            ("_state_dict_type", "sharded", "full"),
            ("_save_distributed_checkpoint", True, False),
        )
        if getattr(strategy, name, None) == sharded
    }
    before = {name: getattr(strategy, name) for name in changed}
    vars(strategy).update(changed)
    try:
        yield
    finally:
        vars(strategy).update(before)


def _named_parameters(module: Any) -> Iterator[Tuple[str, Any]]:
    """The parameters of a module by all their names, which a state dict has them by."""
    for prefix, child in module.named_modules(remove_duplicate=False):
        for name, parameter in child._parameters.items():
            if parameter is not None:
                yield f"{prefix}.{name}".lstrip(".").replace("_fsdp_wrapped_module.", ""), parameter


def _deepspeed_state_dict(module: Any, *, keep: bool) -> Dict[str, Any]:
    """The model of DeepSpeed, gathered one parameter after the other; a parameter of two names once."""
    parameters = dict(_named_parameters(module))
    whole: Dict[int, Any] = {}
    found: Dict[str, Any] = {}
    for name, value in module.state_dict().items():
        parameter = parameters.get(name)
        if parameter is not None and id(parameter) not in whole:
            whole[id(parameter)] = _deepspeed_parameter(parameter, keep)
        if keep:
            own = value.detach().cpu() if hasattr(value, "detach") else value
            found[name] = own if parameter is None else whole[id(parameter)]
    return found


def _deepspeed_parameter(parameter: Any, keep: bool) -> Any:
    import deepspeed
    import torch

    if parameter.dtype != torch.float32 and parameter.requires_grad:
        # Its optimizer updates a copy in single precision, in partitions.
        master = deepspeed.utils.safe_get_full_fp32_param(parameter)
        is_part = hasattr(parameter, "ds_id")
        # At the end of training a callback may have put averages in the place of the weights.
        if master is not None and (is_part or torch.equal(master.to(parameter), parameter.detach())):
            return master.detach().cpu() if keep else None
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().cpu() if keep else None
    with deepspeed.zero.GatheredParameters([parameter]):
        # The gathered values are released when the context is left, on a CPU as well.
        return parameter.detach().clone().cpu() if keep else None
