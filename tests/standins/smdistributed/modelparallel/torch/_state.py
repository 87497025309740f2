"""Ranks, groups and configuration of the stand-in."""

import json
import os
from types import SimpleNamespace

import torch.distributed as dist

calls = []
state = SimpleNamespace(cfg=None, model=None, optimizer=None, in_step=False)
_DEFAULTS = {
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 1,
    "microbatches": 1,
    "ddp": False,
    "fp16": False,
}
# Which degrees make the groups of each kind: of pipeline (P), tensor (T) and data (D).
_KINDS = {"pp": "P", "tp": "T", "rdp": "D", "mp": "PT", "dp": "DT"}
_alone = []


class SMPError(RuntimeError):
    """What the library refuses."""


def init(config=None):
    """The job's configuration overrides the script's."""
    if is_initialized():
        raise SMPError("SMP stand-in: smp.init() was called twice")
    given = {**(config or {}), **json.loads(os.environ.get("SM_HP_MP_PARAMETERS") or "{}")}
    if "partitions" in given:
        given["pipeline_parallel_degree"] = given.pop("partitions")
    state.cfg = SimpleNamespace(**{**_DEFAULTS, **given})
    calls.append(("init",))
    cfg = state.cfg
    mp = cfg.pipeline_parallel_degree * cfg.tensor_parallel_degree
    if size() % mp or (not cfg.ddp and (cfg.tensor_parallel_degree > 1 or size() > mp)):
        raise SMPError(f"SMP stand-in: {size()} processes, model parallel {mp}, ddp {cfg.ddp}")
    degrees = {"P": cfg.pipeline_parallel_degree, "T": cfg.tensor_parallel_degree, "D": size() // mp}
    (state.degree,) = (letter for letter, degree in degrees.items() if degree == size())
    if cfg.ddp:
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank(), world_size=size())
        make_groups()


def make_groups():
    """Without ``ddp`` the library has other means to communicate, and the stand-in waits for the script's group."""
    if not _alone:
        _alone.extend(dist.new_group([each], backend="gloo") for each in range(size()))


def is_initialized():
    return state.cfg is not None


def _variable(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))


def rank():
    return _variable("OMPI_COMM_WORLD_RANK", "RANK")


def size():
    return _variable("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")


def ranks_of(kind):
    """All ranks or this one alone: one of the degrees is the size of the world."""
    return list(range(size())) if state.degree in _KINDS[kind] else [rank()]


def group(kind):
    make_groups()
    return dist.group.WORLD if len(ranks_of(kind)) > 1 else _alone[rank()]


def _accessors(kind):
    return lambda: ranks_of(kind).index(rank()), lambda: len(ranks_of(kind))


pp_rank, pp_size = _accessors("pp")
tp_rank, tp_size = _accessors("tp")
rdp_rank, rdp_size = _accessors("rdp")
dp_rank, dp_size = _accessors("dp")


def get_mp_group():
    return ranks_of("mp")


def get_mp_process_group():
    if not state.cfg.ddp:
        raise SMPError("SMP stand-in: process groups need ddp")
    return group("mp")


def reset():
    """As in a new script; the default group stays. Not in AWS's library."""
    vars(state).update(cfg=None, model=None, optimizer=None, in_step=False)
    calls.clear()
