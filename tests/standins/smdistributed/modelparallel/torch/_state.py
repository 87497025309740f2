"""Ranks, groups and configuration of the stand-in."""

import itertools
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
# The library's default placement "cluster": ranks next to each other are in one tensor parallel group.
_PLACEMENT = "DPT"
# Which letters of the placement vary within a group of each kind.
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
    degrees = {"P": cfg.pipeline_parallel_degree, "T": cfg.tensor_parallel_degree, "D": size() // mp}
    places = list(itertools.product(*(range(degrees[letter]) for letter in _PLACEMENT)))
    for kind, varies in _KINDS.items():
        fixed = [index for index, letter in enumerate(_PLACEMENT) if letter not in varies]
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


def ranks_of(kind):
    return next(ranks for ranks in _ranks[kind] if rank() in ranks)


def group(kind):
    make_groups()
    return _groups[kind]


def _accessors(kind):
    return lambda: ranks_of(kind).index(rank()), lambda: len(ranks_of(kind))


pp_rank, pp_size = _accessors("pp")
tp_rank, tp_size = _accessors("tp")
rdp_rank, rdp_size = _accessors("rdp")
dp_rank, dp_size = _accessors("dp")


def get_mp_group():
    return list(ranks_of("mp"))


def get_mp_process_group():
    if not state.cfg.ddp:
        raise SMPError("SMP stand-in: process groups need ddp")
    return group("mp")


def reset():
    """As in a new script; the default group stays. Not in AWS's library."""
    vars(state).update(cfg=None, model=None, optimizer=None, in_step=False)
    for kept in (calls, _ranks, _groups):
        kept.clear()
