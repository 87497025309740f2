"""``smp.step`` and ``StepOutput`` of the stand-in."""

import functools

import torch
import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection

from smdistributed.modelparallel.torch._state import SMPError, calls, group, pp_rank, pp_size, ranks_of, state


class StepOutput:
    """A tensor of each microbatch."""

    def __init__(self, outputs):
        self.outputs = outputs

    def reduce_mean(self):
        return torch.stack(self.outputs).float().mean(0)

    def concat(self):
        return torch.cat(self.outputs)


def step():
    """``@smp.step()``: each tensor among the arguments is split along its first axis."""

    def decorate(function):
        calls.append(("step", function.__name__))
        return functools.wraps(function)(functools.partial(_run, function))

    return decorate


def _run(function, *arguments):
    count = state.cfg.microbatches
    pieces = [apply_to_collection(arguments, torch.Tensor, _piece, count, index) for index in range(count)]
    if state.model is not None:
        state.model.begin_step()
    outputs = None
    state.in_step = True
    try:
        if pp_rank() == 0:
            outputs = [_detached(function(*piece)) for piece in pieces]
    finally:
        state.in_step = False
    if state.model is not None:
        state.model.end_step()
    if pp_size() > 1:
        box = [outputs]
        dist.broadcast_object_list(box, src=ranks_of("pp")[0], group=group("pp"))
        outputs = box[0]
    return _merge(outputs)


def _piece(tensor, count, index):
    if not tensor.dim():
        return tensor
    if len(tensor) % count:
        raise SMPError(f"SMP stand-in: a batch of {len(tensor)} cannot be split into {count} microbatches")
    return tensor.chunk(count)[index]


def _detached(value):
    return apply_to_collection(value, torch.Tensor, lambda tensor: tensor.detach().clone())


def _merge(outputs):
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return StepOutput(list(outputs))
    if isinstance(first, dict):
        return {key: _merge([each[key] for each in outputs]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_merge(list(each)) for each in zip(*outputs))
    return first
