"""Times that the cost model is checked against.

None of its constants was fitted to them, but its terms were chosen with them in sight.

Source: measured 2026-11-23, four network namespaces, gloo, tbf: 25.6 M parameters, compute asleep, on two cores.
"""

from lightning_sm._plan import Instance, Network, Option, Workload, network_of

PARAMETERS = 25_613_312
# Milliseconds of process time that filling the gradients takes, which a step on one host has besides its sleep.
FILLING = 14
BF16_5 = Option("bf16", bucket_cap_mb=5)
# Mbit/s, hosts, ms asleep, option, accumulation, ms a step.
TIMES = [
    (200, 4, 300, Option(), 1, 6567),
    (1000, 4, 300, Option(), 1, 1424),
    (1000, 4, 300, Option(), 1, 1445),
    (200, 4, 300, Option(bucket_cap_mb=5), 1, 6579),
    (1000, 4, 300, Option(bucket_cap_mb=5), 1, 1423),
    (200, 4, 300, BF16_5, 1, 3347),
    (1000, 4, 300, BF16_5, 1, 774),
    (1000, 4, 300, BF16_5, 1, 778),
    (200, 4, 300, Option("bf16"), 4, 1085),
    (1000, 4, 300, Option("bf16"), 4, 453),
    (200, 4, 300, Option(local_steps=8), 1, 1179),
    (200, 4, 300, Option(local_steps=16), 1, 776),
    (200, 4, 300, Option(local_steps=64), 1, 452),
    (1000, 4, 300, Option(local_steps=8), 1, 541),
    (1000, 4, 300, Option(local_steps=16), 1, 448),
    (1000, 4, 300, Option(local_steps=64), 1, 377),
]
# The same, with the ratio to plain DDP instead of a time.
RATIOS = [
    (1000, 4, 300, Option(bucket_cap_mb=1), 1, 0.991),
    (1000, 4, 300, Option(bucket_cap_mb=50), 1, 1.08),
    (1000, 4, 300, Option(bucket_cap_mb=100), 1, 1.16),
    (1000, 4, 300, Option("fp16"), 1, 0.575),
    (1000, 4, 300, Option("bf16"), 1, 0.576),
    (1000, 4, 300, Option(), 4, 0.42),
    (1000, 2, 150, BF16_5, 1, 0.533),
    (1000, 2, 600, BF16_5, 1, 0.602),
]


def workload(asleep: int, accumulate: int = 1) -> Workload:
    return Workload(PARAMETERS, (asleep + FILLING) / 1e3, accumulate=accumulate)


def network(mbit: int) -> Network:
    return network_of(Instance("namespace", 0, mbit / 1000))
