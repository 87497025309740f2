"""torch's ``SyncBatchNorm`` on a CPU, where torch refuses it: its own function with its collectives, our arithmetic.

The refusals are two checks of the device, in the layer's ``forward`` and in DDP. Behind them stands an autograd
function whose collectives know no device; only its five kernels exist for GPUs alone, and are written out here.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import _functions

__all__ = ["allow_sync_batchnorm_on_cpu"]


def allow_sync_batchnorm_on_cpu():
    """From now on ``torch.nn.SyncBatchNorm``, into which Lightning converts batch norms, works on CPUs."""
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        setattr(torch, kernel.__name__, kernel)
    # Older versions of torch ask the driver, also where there is none.
    torch.cuda.is_current_stream_capturing = lambda: False
    CPUSyncBatchNorm.convert_sync_batchnorm = vars(torch.nn.SyncBatchNorm)["convert_sync_batchnorm"]
    torch.nn.SyncBatchNorm = CPUSyncBatchNorm


class CPUSyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """No subclass of torch's, because DDP refuses that by its class."""

    convert_sync_batchnorm: Any

    def __init__(self, num_features, eps, momentum, affine, track_running_stats, process_group=None, **more):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **more)
        self.process_group = process_group

    def _check_input_dim(self, input):
        pass

    def forward(self, input):
        if not self.training:
            return super().forward(input)
        self.num_batches_tracked.add_(1)
        group = self.process_group or dist.group.WORLD
        statistics = (self.running_mean, self.running_var, self.eps, self.momentum)
        size = dist.get_world_size(group)
        return _functions.SyncBatchNorm.apply(input, self.weight, self.bias, *statistics, group, size)


def _but_channels(input):
    return [dim for dim in range(input.dim()) if dim != 1]


def _per_channel(values, input):
    return values.view(1, -1, *[1] * (input.dim() - 2))


def batch_norm_stats(input, eps):
    dims = _but_channels(input)
    return input.mean(dims), (input.var(dims, unbiased=False) + eps).rsqrt()


def batch_norm_gather_stats_with_counts(input, means, inverses, running_mean, running_var, momentum, eps, counts):
    shares, total = (counts / counts.sum()).unsqueeze(1), counts.sum()
    mean = (shares * means).sum(0)
    variance = (shares * (inverses**-2 - eps + (means - mean) ** 2)).sum(0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(variance * total / (total - 1), momentum)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(input, weight, bias, mean, inverse, eps):
    mean, scale, bias = (_per_channel(each, input) for each in (mean, inverse * weight, bias))
    return (input - mean) * scale + bias


def batch_norm_backward_reduce(grad, input, mean, inverse, weight, *needed):
    dims = _but_channels(input)
    total = grad.sum(dims)
    weighted = (grad * (input - _per_channel(mean, input))).sum(dims)
    return total, weighted, weighted * inverse, total


def batch_norm_backward_elemt(grad, input, mean, inverse, weight, total, weighted, counts):
    mean, scale, total, slope = (
        _per_channel(each, input)
        for each in (mean, inverse * weight, total / counts.sum(), weighted / counts.sum() * inverse**2)
    )
    return (grad - total - (input - mean) * slope) * scale
