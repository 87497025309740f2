"""The cost model: what a step of DDP takes on several hosts, from what it takes on one.

Backward makes gradients ready bucket by bucket, and the network reduces one bucket after the other meanwhile. The step
ends when both have ended::

    start[i] = max(ready[i], end[i - 1])        ready[i] = forward + backward * bytes[0..i] / bytes
    end[i]   = start[i] + all_reduce(bytes[i])  step     = max(forward + backward, end[-1])

An all-reduce among ``N`` processes on ``h`` hosts takes the shorter time of NCCL's two algorithms: a ring,
``2 (h - 1) latency + 2 (N - 1) / N * bytes / bandwidth``, or a tree, ``2 ceil(log2 h) latency + 2 bytes / bandwidth``.

Sources: ``torch/nn/parallel/distributed.py`` (sizes of buckets), ``torch/csrc/distributed/c10d/reducer.cpp`` (order),
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md (bytes of an all-reduce).
"""

import math
from dataclasses import dataclass, replace
from typing import List, Literal, Mapping, Optional, Tuple

__all__ = [
    "Bottleneck",
    "Network",
    "Option",
    "Prediction",
    "Workload",
    "candidate_options",
    "fewest_settings",
    "pays_below",
    "predict",
]

_MIB = 2**20
# DDP's own sizes: of the first bucket, so that reducing begins early, and of the others.
_FIRST_BUCKET_MB, _BUCKET_MB = 1.0, 25.0
# An option that gains less is not worth its setting.
_WORTH = 0.02
# A step that is longer by less than this is limited by its compute.
_COMPUTE = 0.05
#: What limits a step, in the words of the table.
Bottleneck = Literal["compute", "bandwidth", "latency of buckets", "last bucket", "compression"]


@dataclass(frozen=True)
class Workload:
    """What each process computes in a step, whatever the number of hosts.

    Args:
        parameters: The number of parameters that have gradients.
        step_seconds: The time of a step on one host, in seconds: of one batch in each process.
        bytes_per_parameter: Of a gradient: 4, or 2 for a model whose weights are of 16 bits.
        accumulate: Steps for each optimizer step: ``accumulate_grad_batches`` of the ``Trainer``.
        forward: The share of a step that is over before the first gradient is ready.
    """

    parameters: float
    step_seconds: float
    bytes_per_parameter: int = 4
    accumulate: int = 1
    forward: float = 1 / 3

    @property
    def gradient_bytes(self) -> float:
        """The bytes of all gradients of a process."""
        return self.parameters * self.bytes_per_parameter


@dataclass(frozen=True)
class Network:
    """What lies between hosts, and what the processes do to data on their way.

    Args:
        bytes_per_second: The payload that a host sends, and receives at the same time, in bytes per second.
        latency: Of one message between two hosts, in seconds.
        processes: The processes of a host.
        hook_per_byte: The seconds that compressing and decompressing a byte of a gradient to 16 bits takes.
        powersgd_per_byte: The seconds that PowerSGD computes for a byte of a gradient.
        copy_per_byte: The seconds that DDP takes for a byte to copy reduced gradients out of a bucket.
    """

    bytes_per_second: float
    latency: float
    processes: int = 1
    hook_per_byte: float = 0.0
    powersgd_per_byte: float = 0.0
    copy_per_byte: float = 0.0

    def all_reduce(self, size: float, hosts: int) -> float:
        """Return the seconds that the sum of ``size`` bytes among all processes of the hosts takes."""
        if hosts == 1:
            return 0.0
        processes, seconds = hosts * self.processes, 2 * size / self.bytes_per_second
        ring = 2 * (hosts - 1) * self.latency + seconds * (processes - 1) / processes
        return min(ring, 2 * math.ceil(math.log2(hosts)) * self.latency + seconds)


@dataclass(frozen=True)
class Option:
    """Options of ``SMDDPStrategy``; the defaults are plain DDP's.

    Args:
        gradient_compression: ``bf16``, ``fp16`` or ``powersgd``.
        powersgd_rank: The rank of PowerSGD's matrices.
        bucket_cap_mb: The size of each bucket, in MiB.
        local_steps: Optimizer steps after which processes average their weights, instead of gradients in each step.
    """

    gradient_compression: Optional[str] = None
    powersgd_rank: int = 1
    bucket_cap_mb: Optional[float] = None
    local_steps: int = 1

    @property
    def warning(self) -> str:
        """How it changes what is learned; empty if it does not by more than rounding."""
        if self.local_steps > 1:
            return f"weights are averaged each {self.local_steps} steps only"
        return "gradients are approximated" if self.gradient_compression == "powersgd" else ""

    def __str__(self) -> str:
        parts = [] if self.gradient_compression is None else [f"gradient_compression={self.gradient_compression}"]
        if self.gradient_compression == "powersgd":
            parts.append(f"powersgd_rank={self.powersgd_rank}")
        if self.bucket_cap_mb is not None:
            parts.append(f"bucket_cap_mb={self.bucket_cap_mb:g}")
        if self.local_steps > 1:
            parts.append(f"local_steps={self.local_steps}")
        return ", ".join(parts) or "plain DDP"

    def wire_share(self, workload: Workload) -> float:
        """The bytes that are reduced, over the bytes of the gradients.

        PowerSGD is taken to meet square matrices as wide as those of a transformer of 8 layers and this size, and one
        vector for each matrix, which it does not compress.
        """
        if self.gradient_compression in ("bf16", "fp16"):
            return min(1.0, 2 / workload.bytes_per_parameter)
        if self.gradient_compression == "powersgd":
            return min(1.0, (2 * self.powersgd_rank + 2) / math.sqrt(workload.parameters / 96))
        return 1.0


@dataclass(frozen=True)
class Prediction:
    """A step on a number of hosts.

    Attributes:
        hosts: The number of hosts.
        step_seconds: The time of a step: of one batch in each process.
        efficiency: The throughput over ``hosts`` times that of one host.
        bottleneck: What makes a step longer than on one host, if something does.
    """

    hosts: int
    step_seconds: float
    efficiency: float
    bottleneck: Bottleneck

    @property
    def speedup(self) -> float:
        """The throughput over that of one host."""
        return self.hosts * self.efficiency


_PLAIN = Option()


def predict(workload: Workload, network: Network, hosts: int, option: Option = _PLAIN) -> Prediction:
    """Return what a step takes on a number of hosts."""
    compute, size = workload.step_seconds, workload.gradient_bytes
    share = option.wire_share(workload)
    period = workload.accumulate * option.local_steps
    if hosts == 1:
        return Prediction(1, compute, 1.0, "compute")
    copies = network.copy_per_byte * size
    if option.local_steps > 1:
        count = 1
        communication = network.all_reduce(size, hosts)
        exposed, hook = communication + copies * (period + 1), 0.0
    else:
        buckets = _buckets(size, option.bucket_cap_mb)
        count = sum(each for each, _ in buckets)
        # PowerSGD reduces what it does not compress, then one factor, then the other.
        messages = 3 if option.gradient_compression == "powersgd" else 1
        hook = _hook_per_byte(network, option)
        forward = compute * workload.forward
        # DDP copies gradients into buckets while backward runs, and out of them when all are reduced.
        backward = compute - forward + copies / 2
        end = done = communication = 0.0
        for equal, bucket in buckets:
            seconds = messages * network.all_reduce(bucket * share / messages, hosts)
            communication += equal * seconds
            seconds += hook * bucket
            first, done = done + bucket, done + equal * bucket
            # Of equal buckets, which become ready at equal intervals, only the first and the last can be waited for.
            begin, last = (forward + backward * each / size for each in (first, done))
            end = max(max(begin, end) + equal * seconds, last + seconds)
        exposed = end - compute + copies / 2
    exposed /= period
    latency = count * network.all_reduce(0.0, hosts)
    bottleneck = _bottleneck(workload, exposed, communication, latency, hook * size)
    return Prediction(hosts, compute + exposed, compute / (compute + exposed), bottleneck)


def _buckets(size: float, cap_mb: Optional[float]) -> List[Tuple[int, float]]:
    """The numbers of buckets of equal size, and the bytes of each, in the order in which they are reduced."""
    first = min(size, (_FIRST_BUCKET_MB if cap_mb is None else cap_mb) * _MIB)
    cap = (_BUCKET_MB if cap_mb is None else cap_mb) * _MIB
    number, rest = divmod(size - first, cap)
    return [(count, each) for count, each in ((1, first), (int(number), cap), (1, rest)) if count and each]


def _hook_per_byte(network: Network, option: Option) -> float:
    if option.gradient_compression is None:
        return 0.0
    return network.powersgd_per_byte if option.gradient_compression == "powersgd" else network.hook_per_byte


def _bottleneck(workload: Workload, exposed: float, communication: float, latency: float, hook: float) -> Bottleneck:
    if exposed < _COMPUTE * workload.step_seconds:
        return "compute"
    if hook > communication:
        return "compression"
    if 2 * latency > communication:
        return "latency of buckets"
    is_longer = communication > workload.step_seconds * (1 - workload.forward)
    return "bandwidth" if is_longer else "last bucket"


def candidate_options(workload: Workload, network: Network, hosts: int) -> List[Option]:
    """Return the options that can pay, those that change nothing that is learned first.

    Buckets have the size that is fastest for these gradients on these hosts, unless that is DDP's own.
    """

    def best_buckets(option: Option) -> Option:
        sizes = [option, *(replace(option, bucket_cap_mb=size) for size in (1, 2, 5, 10, 25, 50, 100))]
        return min(sizes, key=lambda each: predict(workload, network, hosts, each).step_seconds)

    bf16 = Option("bf16")
    options = [
        best_buckets(Option()),
        bf16,
        best_buckets(bf16),
        Option("powersgd", powersgd_rank=4),
        Option(local_steps=8),
        Option(local_steps=16),
    ]
    return [each for each in dict.fromkeys(options) if each != _PLAIN]


def fewest_settings(seconds: Mapping[Option, float]) -> Option:
    """Return the option with the fewest settings of those whose steps are at most 2 % longer than the shortest."""
    fastest = min(seconds.values())
    by_settings = sorted(seconds, key=lambda each: str(each).count("="))
    return next(each for each in by_settings if seconds[each] <= (1 + _WORTH) * fastest)


def pays_below(workload: Workload, network: Network, hosts: int, option: Option) -> Optional[float]:
    """Return the bandwidth, in bytes per second, up to which an option makes steps at least 2 % shorter.

    None means that it never does; infinity, that the bandwidth does not matter.
    """

    def pays(bandwidth: float) -> bool:
        there = replace(network, bytes_per_second=bandwidth)
        plain = predict(workload, there, hosts).step_seconds
        return predict(workload, there, hosts, option).step_seconds < (1 - _WORTH) * plain

    # From 1 TB/s down to 1 MB/s, then between two neighbours.
    above, below = math.inf, 1e12
    while not pays(below):
        above, below = below, below / 2
        if below < 1e6:
            return None
    if above == math.inf:
        return above
    for _ in range(6):
        middle = math.sqrt(above * below)
        above, below = (above, middle) if pays(middle) else (middle, below)
    return below
