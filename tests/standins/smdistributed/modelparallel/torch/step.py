"""``smp.step`` and ``StepOutput`` of the stand-in."""

import functools
import inspect

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import SMPError, calls, group, pp_rank, pp_size, ranks_of, state


class StepOutput:
    """A tensor of each microbatch."""

    def __init__(self, outputs):
        self.outputs = outputs

    def reduce_mean(self):
        return torch.stack(self.outputs).float().mean(0)

    def reduce_sum(self):
        return torch.stack(self.outputs).sum(0)

    def concat(self):
        return torch.cat(self.outputs)

    def stack(self):
        return torch.stack(self.outputs)


def step(function=None, non_split_inputs=(), input_split_axes=None, detach_outputs=True):
    """``@smp.step``, ``@smp.step()`` and ``@smp.step(...)``."""
    if function is None:
        return lambda given: step(given, non_split_inputs, input_split_axes, detach_outputs)
    signature, axes = inspect.signature(function), input_split_axes or {}
    calls.append(("step", function.__name__))

    @functools.wraps(function)
    def run(*args, **kwargs):
        count = state.cfg.microbatches
        bound = signature.bind(*args, **kwargs)
        pieces = [
            {
                name: value if name in non_split_inputs else _piece(value, count, index, axes.get(name, 0))
                for name, value in bound.arguments.items()
            }
            for index in range(count)
        ]
        model = state.model
        if model is not None:
            model.begin_step()
        outputs = None
        state.in_step = True
        try:
            if pp_rank() == 0:
                outputs = []
                for piece in pieces:
                    call = inspect.BoundArguments(signature, piece)
                    outputs.append(_map(function(*call.args, **call.kwargs), detach_outputs))
        finally:
            state.in_step = False
        if model is not None:
            model.end_step()
        if pp_size() > 1:
            box = [outputs]
            dist.broadcast_object_list(box, src=ranks_of("pp")[0], group=group("pp"))
            outputs = box[0]
        return _merge(outputs)

    return run


def _piece(value, count, index, axis):
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        if value.size(axis) % count:
            raise SMPError(f"SMP stand-in: a batch of {value.size(axis)} cannot be split into {count} microbatches")
        width = value.size(axis) // count
        return value.narrow(axis, index * width, width)
    if isinstance(value, dict):
        return {key: _piece(each, count, index, axis) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(_piece(each, count, index, axis) for each in value)
    return value.smp_slice(count, index, axis) if hasattr(value, "smp_slice") else value


def _map(value, detach):
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if detach else value
    if isinstance(value, dict):
        return {key: _map(each, detach) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map(each, detach) for each in value)
    return value


def _merge(outputs):
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return StepOutput(list(outputs))
    if isinstance(first, dict):
        return {key: _merge([each[key] for each in outputs]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_merge(list(each)) for each in zip(*outputs))
    return first
