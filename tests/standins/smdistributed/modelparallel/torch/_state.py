"""Ranks, groups and configuration of the stand-in."""

import itertools
import json
import os
from types import SimpleNamespace

import torch.distributed as dist

calls = []
state = SimpleNamespace(cfg=None, model=None, optimizer=None, in_step=False)
_PLACEMENTS = {"cluster": "DPT", "spread": "TPD"}
_DEFAULTS = {
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 1,
    "sharded_data_parallel_degree": 1,
    "microbatches": 1,
    "ddp": False,
    "placement_strategy": "cluster",
    "fp16": False,
    "bf16": False,
    "prescaled_batch": False,
    "shard_optimizer_state": False,
}
# Which letters of a placement vary within a group of each kind.
_KINDS = {"pp": "P", "tp": "T", "rdp": "D", "mp": "PT", "dp": "DT"}
_ranks = {}
_groups = {}


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
    letters = _PLACEMENTS.get(cfg.placement_strategy, cfg.placement_strategy)
    degrees = {"P": cfg.pipeline_parallel_degree, "T": cfg.tensor_parallel_degree, "D": size() // mp}
    places = list(itertools.product(*(range(degrees[letter]) for letter in letters)))
    for kind, varies in _KINDS.items():
        fixed = [index for index, letter in enumerate(letters) if letter not in varies]
        of_rank = [tuple(place[index] for index in fixed) for place in places]
        _ranks[kind] = [[r for r, key in enumerate(of_rank) if key == each] for each in sorted(set(of_rank))]
    if cfg.ddp:
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank(), world_size=size())
        make_groups()


def make_groups():
    """Without ``ddp`` the library has other means to communicate, and the stand-in waits for the script's group."""
    for kind, all_ranks in _ranks.items() if not _groups else ():
        for ranks in all_ranks:
            group = dist.new_group(ranks, backend="gloo")
            if rank() in ranks:
                _groups[kind] = group


def is_initialized():
    return state.cfg is not None


def _variable(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))


def rank():
    return _variable("OMPI_COMM_WORLD_RANK", "RANK")


def size():
    return _variable("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")


def local_rank():
    return _variable("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")


def local_size():
    return _variable("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")


def ranks_of(kind):
    return next(ranks for ranks in _ranks[kind] if rank() in ranks)


def group(kind):
    make_groups()
    return _groups[kind]


def _public_group(kind):
    if not state.cfg.ddp:
        raise SMPError("SMP stand-in: process groups need ddp")
    return group(kind)


def _accessors(kind):
    return (
        lambda: ranks_of(kind).index(rank()),
        lambda: len(ranks_of(kind)),
        lambda: list(ranks_of(kind)),
        lambda: _public_group(kind),
    )


pp_rank, pp_size, _, _ = _accessors("pp")
tp_rank, tp_size, get_tp_group, get_tp_process_group = _accessors("tp")
rdp_rank, rdp_size, _, _ = _accessors("rdp")
mp_rank, mp_size, get_mp_group, get_mp_process_group = _accessors("mp")
dp_rank, dp_size, get_dp_group, get_dp_process_group = _accessors("dp")


def get_world_process_group():
    _public_group("mp")
    return dist.group.WORLD


def barrier():
    dist.barrier()


def mp_barrier():
    dist.barrier(group("mp"))


def dp_barrier():
    dist.barrier(group("dp"))


def reset():
    """As in a new script; the default group stays. Not in AWS's library."""
    vars(state).update(cfg=None, model=None, optimizer=None, in_step=False)
    for kept in (calls, _ranks, _groups):
        kept.clear()
