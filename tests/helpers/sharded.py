"""Lightning's sharded strategies on CPUs and gloo, where Lightning allows them on CUDA GPUs only.

FSDP2 (``ModelParallelStrategy``) runs there as it is. The test-side subclasses of the others, ``FSDPStrategy`` and
``DeepSpeedStrategy`` (ZeRO stages 2 and 3), remove checks of the device. Where FSDP gathers the full state of an
optimizer, they also copy what torch copies from a GPU, and on a CPU leaves in one buffer that it overwrites.
"""

import importlib.metadata
import os
import sys
from typing import Any, Dict, Tuple
from unittest import mock

import torch

from tests.helpers.accelerator import ON_GPU
from tests.helpers.tiny import tiny_model

__all__ = [
    "KINDS",
    "cpu_class",
    "gathered_weights",
    "own_part",
    "prepare_deepspeed",
    "runs_here",
    "save_after",
    "shard",
    "shard_by_layers",
    "sharded_model",
    "strategy_of",
]

# Lightning's are for 200 million numbers: DeepSpeed then allocates 800 MB in each step of a small model.
_BUCKETS = {"allgather_bucket_size": 100_000, "reduce_bucket_size": 100_000}

#: Each kind with the name of Lightning's strategy and the arguments that make it one.
KINDS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "ddp": ("DDPStrategy", {}),
    "fsdp": ("FSDPStrategy", {"state_dict_type": "sharded"}),
    "fsdp_full": ("FSDPStrategy", {"state_dict_type": "full"}),
    "fsdp2": ("ModelParallelStrategy", {"save_distributed_checkpoint": True}),
    "fsdp2_full": ("ModelParallelStrategy", {"save_distributed_checkpoint": False}),
    "deepspeed_2": ("DeepSpeedStrategy", {"stage": 2, **_BUCKETS}),
    "deepspeed_3": ("DeepSpeedStrategy", {"stage": 3, **_BUCKETS}),
}


def runs_here(kind: str) -> bool:
    """Whether the installed versions can run a kind of strategy on what tests train on."""
    if ON_GPU:
        return True
    if kind.startswith("deepspeed"):
        # On CPUs stage 3 of DeepSpeed 0.15.4 computes something else each time, also with Lightning alone.
        return _version("deepspeed") >= ((0, 19) if kind == "deepspeed_3" else (0, 9))
    # Before 2.4 Lightning refuses subclasses of its FSDPStrategy on CPUs, too.
    return kind != "fsdp" or max(_version("pytorch-lightning"), _version("lightning")) >= (2, 4)


def _version(package):
    try:
        return tuple(int(part) for part in importlib.metadata.version(package).split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)


def cpu_class(strategy_class):
    """A subclass of a strategy class, Lightning's or ours, that runs on CPUs."""
    names = {cls.__name__ for cls in strategy_class.__mro__}
    for name, mixin in (("FSDPStrategy", _FSDPOnCPU), ("DeepSpeedStrategy", _DeepSpeedOnCPU)):
        if name in names:
            # Lightning refuses a CPU where the type is its own, not a subclass.
            return type(f"CPU{strategy_class.__name__}", (mixin, strategy_class), {})
    return strategy_class


def strategy_of(kind: str, strategies: Any, **arguments: Any) -> Any:
    """A strategy of a kind of :data:`KINDS`, on CPUs where tests train on these.

    Args:
        kind: A key of :data:`KINDS`.
        strategies: Lightning's module of strategies, or a dict of classes by the names in :data:`KINDS`.
        **arguments: Further arguments of the strategy.
    """
    name, own = KINDS[kind]
    cls = strategies[name] if isinstance(strategies, dict) else getattr(strategies, name)
    if not ON_GPU:
        if kind.startswith("deepspeed"):
            prepare_deepspeed()
        cls = cpu_class(cls)
    if kind.startswith("fsdp2"):
        # Lightning's "auto" is tensor parallel within a host.
        own = {**own, "data_parallel_size": int(os.environ.get("WORLD_SIZE", 1)), "tensor_parallel_size": 1}
    if name == "FSDPStrategy":
        own = {**own, "auto_wrap_policy": {torch.nn.Linear}}
    return cls(**{**own, **arguments})


def sharded_model(pl):
    """``tiny_model`` that also works with FSDP2, whose parts a model shards itself."""

    class ShardedTiny(type(tiny_model(pl))):
        def configure_model(self):
            shard(self, self.layers[::2])

    return ShardedTiny()


def save_after(*steps):
    """Let fits of this process save after these steps and at the end, however long they take.

    Where Lightning resumes at the start of epochs only, after the last step of an epoch.
    """
    from lightning_sm._lightning import collectives
    from lightning_sm._resume.saver import SeriesSaver

    SeriesSaver.is_due = lambda saver, trainer, point: point is not None and trainer.global_step in steps
    # Otherwise ranks ask each other once in a quarter of a second.
    collectives.ThrottledAllReduce.next_interval = lambda reduced: 1


def shard(module, parts):
    """Let FSDP2 shard parts of a module and then the module, once; nothing under other strategies."""
    if getattr(module, "device_mesh", None) is None:
        return
    from torch.distributed.fsdp import FSDPModule, fully_shard  # torch 2.6

    if not isinstance(module, FSDPModule):
        for part in (*parts, module):
            fully_shard(part, mesh=module.device_mesh["data_parallel"])


def shard_by_layers(model):
    """Let a model shard its linear layers and itself under FSDP2, which leaves it to the model."""

    class Sharded(type(model)):
        def configure_model(self):
            shard(self, [layer for layer in self.modules() if isinstance(layer, torch.nn.Linear)])

    model.__class__ = Sharded


def gathered_weights(strategy, module):
    """Every weight of a module that a strategy has sharded, as exact numbers by names. Every rank must call it."""
    from torch.distributed import fsdp

    found = {}
    whole = type(strategy.model).__name__
    if whole == "FullyShardedDataParallel":
        # torch crashes when it gathers a full state dict on CPUs.
        with fsdp.FullyShardedDataParallel.summon_full_params(strategy.model, writeback=False):
            found = {name: value.detach().clone() for name, value in module.named_parameters()}
    elif getattr(strategy, "zero_stage_3", False):
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(module.parameters())):
            found = {name: value.detach().clone() for name, value in module.named_parameters()}
    else:
        for name, value in module.named_parameters():
            found[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach()
    return {name.replace("_fsdp_wrapped_module.", ""): value.flatten().tolist() for name, value in found.items()}


def own_part(parameter):
    """The part of a parameter that this rank holds."""
    if hasattr(parameter, "ds_tensor"):
        return parameter.ds_tensor
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.data


def prepare_deepspeed():
    """Let DeepSpeed run on CPUs. It would compile a communication library at its first use, which takes minutes."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.comm  # noqa: F401

    # `import deepspeed.comm.torch as x` gives torch.
    vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None


class _FSDPOnCPU:
    def _setup_model(self, model):
        from torch.distributed import fsdp

        # Lightning passes the index of the device, which a CPU has not. A subclass would change how modules are named.
        init = fsdp.FullyShardedDataParallel.__init__

        def on_cpu(wrapper, *args, **kwargs):
            init(wrapper, *args, **{**kwargs, "device_id": torch.device("cpu")})

        with mock.patch.object(fsdp.FullyShardedDataParallel, "__init__", on_cpu):
            return super()._setup_model(model)

    def optimizer_state(self, optimizer):
        from torch.distributed.fsdp import _optim_utils

        unflatten = _optim_utils._unflatten_orig_param_states

        def copied(info, output_states, state_name, *args):
            unflatten(info, output_states, state_name, *args)
            for values in output_states.values():
                if isinstance(values.get(state_name), torch.Tensor):
                    values[state_name] = values[state_name].clone()

        with mock.patch.object(_optim_utils, "_unflatten_orig_param_states", copied):
            return super().optimizer_state(optimizer)


class _DeepSpeedOnCPU:
    local_rank: int

    @property
    def root_device(self):
        return torch.device("cpu", self.local_rank)

    def setup_environment(self):
        with mock.patch.object(_module_of(self, "DeepSpeedStrategy"), "CUDAAccelerator", object):
            super().setup_environment()

    def setup_distributed(self):
        module = _module_of(self, "DeepSpeedStrategy")
        with mock.patch.object(module, "_validate_device_index_selection", create=True):
            super().setup_distributed()


def _module_of(strategy, name):
    return next(sys.modules[cls.__module__] for cls in type(strategy).__mro__ if cls.__name__ == name)
