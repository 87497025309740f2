"""Steps of DDP among hosts on a network of a given bandwidth: ``DDPStrategy``, and ours with each option, in turn.

Run ``python benchmarks/network.py`` as root, with ``ip`` and ``tc`` (Debian: iproute2). Each host is a network
namespace with one process of gloo; a switch in a namespace of its own connects them, and ``tc`` limits what each host
sends and receives. So nothing of the machine's own network changes. Computing is asleep and gradients are filled with a
number, so that several hosts fit on two cores, as they would on GPUs: a third of the time in forward, two thirds in
backward, the same for each layer. The optimizer does not change weights. What is left is what is measured: DDP, gloo
and the network.

In each round all variants train one after the other, in an order that changes. The times of a step are medians over
rounds with the least and the greatest one, those of global rank 0; bytes are those that its interface has sent.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import logging
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

# Of a packet of 1,500 bytes, 52 are headers of IP and TCP; 14 more are Ethernet's.
_PAYLOAD = 1448 / 1514
_WARMUP_STEPS = 3
_UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8}
_VARIANTS: Dict[str, Optional[Dict[str, Any]]] = {
    "DDPStrategy": None,
    "default": {},
    "bucket_cap_mb=5": {"bucket_cap_mb": 5},
    "static_graph": {"static_graph": True},
    "bf16": {"gradient_compression": "bf16"},
    "bf16, bucket_cap_mb=5": {"gradient_compression": "bf16", "bucket_cap_mb": 5},
    "fp16, bucket_cap_mb=5": {"gradient_compression": "fp16", "bucket_cap_mb": 5},
    "powersgd, rank 1": {"gradient_compression": "powersgd", "powersgd_rank": 1},
    "powersgd, rank 4": {"gradient_compression": "powersgd", "powersgd_rank": 4},
    "local_steps=8": {"local_steps": 8},
    "local_steps=16": {"local_steps": 16},
}
_DEFAULT = (
    "DDPStrategy",
    "default",
    "bucket_cap_mb=5",
    "bf16, bucket_cap_mb=5",
    "powersgd, rank 4",
    "local_steps=16",
)


# --- models, as the shapes of the parameters of each layer

Shapes = List[Tuple[int, ...]]


def _transformer() -> List[Shapes]:
    """Eight blocks of width 512: 25.5 million parameters."""
    width = 512
    attention: Shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    feed_forward: Shapes = [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [[(256, width), (256, width)], *[attention, feed_forward] * 8, [(width,), (width,), (256, width)]]


def _mlp() -> List[Shapes]:
    """Seven dense layers with 0.2 million parameters, as in AWS's announcement of SMDDP."""
    widths = [784, 160, 160, 160, 128, 64, 32, 10]
    return [[(after, before), (after,)] for before, after in zip(widths, widths[1:])]


def _resnet18() -> List[Shapes]:
    """ResNet-18 for images of 32 x 32: 11.2 million parameters."""
    layers: List[Shapes] = [[(64, 3, 3, 3), (64,), (64,)]]
    before = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            block: Shapes = [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if before != width:
                block += [(width, before, 1, 1), (width,), (width,)]
            layers.append(block)
            before = width
    return [*layers, [(10, 512), (10,)]]


_MODELS = {"transformer": _transformer, "mlp": _mlp, "resnet18": _resnet18}


# --- hosts


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[List[str]]:
    """Network namespaces on a switch, each of which sends and receives at most at a rate; yields their names."""
    switch = f"smn{os.getpid()}s"
    names = [f"smn{os.getpid()}h{number}" for number in range(count)]
    # Less than this lets tbf wait for its own timer; more lets packets pile up.
    burst, limit = ("128k", "2mb") if rate.endswith("mbit") else ("256k", "4mb")
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            port = f"port{number}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge")
            _run("ip", "-n", switch, "link", "set", port, "up")
            # With bbr, the default of some machines, times spread more.
            route = ["10.77.0.0/24", "dev", "eth0", "src", f"10.77.0.{number + 1}", "congctl", "cubic"]
            _run("ip", "-n", name, "route", "change", *route)
            for namespace, device in ((name, "eth0"), (switch, port)):
                shape = ["root", "tbf", "rate", rate, "burst", burst, "limit", limit]
                _run("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, *shape)
        yield names
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def _measure_on(names: Sequence[str], words: Sequence[str], seconds: float) -> List[Dict[str, Any]]:
    """Run this script on each host, and return what global rank 0 has measured."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        environ = {
            **os.environ,
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RUN_ID": "network",
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": str(random.randint(20000, 30000)),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            # Memory that is freed and mapped again in each step would cost more than the network.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": "8000000000",
            "MALLOC_TOP_PAD_": "67108864",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        processes = []
        try:
            for rank, name in enumerate(names):
                command = ["ip", "netns", "exec", name, sys.executable, __file__, "--results", str(results), *words]
                own = {**environ, "RANK": str(rank), "GROUP_RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=own, cwd=folder))
            deadline = time.monotonic() + seconds
            codes = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            sys.exit(f"the hosts ended with {codes}")
        found: List[Dict[str, Any]] = json.loads(results.read_text())
        return found


# --- one host


class _Measured(NamedTuple):
    """What a variant took in one round: seconds and bytes of a step, and the peak of the process's memory in MiB."""

    seconds: float
    sent: float
    memory: float


def _sent() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    return int(line.split(":")[1].split()[8])


def _measure(options: argparse.Namespace) -> None:
    """Train all variants, round by round, and write what was measured."""
    import pytorch_lightning as pl
    import torch
    import torch.distributed as dist

    import lightning_sm

    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric", "lightning_sm"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)

    class Asleep(torch.autograd.Function):
        """A layer that takes its time without a core, and whose parameters have gradients."""

        @staticmethod
        def forward(context: Any, value: Any, seconds: float, *parameters: Any) -> Any:
            context.seconds, context.parameters = seconds, parameters
            time.sleep(seconds / 3)
            return value.view_as(value)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            time.sleep(context.seconds * 2 / 3)
            return (gradient, None, *[torch.full_like(each, 1e-3) for each in context.parameters])

    class NoUpdate(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                return closure()

    class Model(pl.LightningModule):
        def __init__(self, layers: List[Shapes]) -> None:
            super().__init__()
            made = [[torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for shapes in layers]
            self.layers = torch.nn.ModuleList([torch.nn.ParameterList(parameters) for parameters in made])

        def training_step(self, batch: Any, index: int) -> Any:
            value = torch.ones(1, requires_grad=True)
            layers: Any = self.layers
            for layer in layers:
                value = Asleep.apply(value, options.compute_ms / 1000 / len(self.layers), *layer)
            return value.sum()

        def configure_optimizers(self) -> Any:
            return NoUpdate(self.parameters(), lr=0.1)

    class Clock(pl.Callback):
        """Notes time and bytes when the first steps are done, and what the last one adds to them."""

        steps = 0

        def on_train_batch_end(self, trainer: Any, *args: object) -> None:
            self.steps += 1
            if self.steps == _WARMUP_STEPS:
                dist.barrier()
                self.began, self.before = time.perf_counter(), _sent()

        def on_train_end(self, *args: object) -> None:
            steps = self.steps - _WARMUP_STEPS
            seconds = (time.perf_counter() - self.began) / steps
            peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
            self.measured = _Measured(seconds, (_sent() - self.before) / steps, int(peak.split()[1]) / 1024)

    def train(name: str) -> _Measured:
        given = _VARIANTS[name]
        arguments = dict(given or {})
        steps = options.steps
        if "local_steps" in arguments:
            # Whole periods, each with its average.
            steps = math.ceil(steps / arguments["local_steps"]) * arguments["local_steps"]
        if "local_steps" in arguments or arguments.get("gradient_compression") == "powersgd":
            arguments["communication_warmup_steps"] = _WARMUP_STEPS
        strategy = pl.strategies.DDPStrategy() if given is None else lightning_sm.SMDDPStrategy(**arguments)
        clock = Clock()
        # The peak of memory begins anew, without what the variant before has left.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, num_nodes=options.hosts, strategy=strategy, callbacks=[clock], logger=False,
            max_steps=_WARMUP_STEPS + steps, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False,
        )  # fmt: skip
        samples: Any = range(1000 * options.hosts)
        trainer.fit(Model(_MODELS[options.model]()), torch.utils.data.DataLoader(samples))
        return clock.measured

    is_main = os.environ["RANK"] == "0"
    variants: List[str] = options.variants
    measured: Dict[str, List[_Measured]] = {name: [] for name in variants}
    for number in range(options.rounds):
        start = number % len(variants)
        for name in variants[start:] + variants[:start]:
            measured[name].append(train(name))
            if is_main:
                print(f"round {number + 1}: {name}: {measured[name][-1].seconds * 1000:.0f} ms", file=sys.stderr)
    if is_main:
        Path(options.results).write_text(json.dumps([_summary(name, measured, options) for name in variants]))
    dist.barrier()
    time.sleep(0.2)  # gloo's threads must be through
    dist.destroy_process_group()


def _summary(name: str, measured: Dict[str, List[_Measured]], options: argparse.Namespace) -> Dict[str, Any]:
    own, first = measured[name], measured[options.variants[0]]
    seconds = statistics.median(each.seconds for each in own)
    sent = statistics.median(each.sent for each in own)
    ratios = [mine.seconds / other.seconds for mine, other in zip(own, first)]
    wire, compute = sent / _bandwidth(options.rate), options.compute_ms / 1000
    # Weights are averaged when backward has ended.
    is_local = "local_steps" in (_VARIANTS[name] or {})
    bound = compute + wire if is_local else compute / 3 + max(compute * 2 / 3, wire)
    return {
        "variant": name,
        "step_ms": round(seconds * 1000, 1),
        "step_ms_min": round(min(each.seconds for each in own) * 1000, 1),
        "step_ms_max": round(max(each.seconds for each in own) * 1000, 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "sent_mb": round(sent / 1e6, 2),
        "bound_ms": round(bound * 1000, 1),
        "share_of_bound": round(bound / seconds, 3),
        "peak_mib": round(statistics.median(each.memory for each in own)),
    }


def _bandwidth(rate: str) -> float:
    """Bytes a second that a rate such as ``200mbit`` leaves for data."""
    return float(rate[:-4]) * _UNITS[rate[-4:]] * _PAYLOAD


# --- the command


def table(found: Sequence[Dict[str, Any]]) -> str:
    """What was measured as a table in Markdown."""
    lines = [
        "| Variant | Step, ms | Ratio | Sent, MB | Bound, ms | Share of it | Peak, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        lines.append(
            "| {variant} | {step_ms:.0f} ({step_ms_min:.0f} to {step_ms_max:.0f}) | {ratio:.3f} ({ratio_min:.3f} to "
            "{ratio_max:.3f}) | {sent_mb:.1f} | {bound_ms:.0f} | {share_of_bound:.2f} | {peak_mib} |".format(**row)
        )
    return "\n".join(lines)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, choices=(2, 3, 4))
    parser.add_argument("--rate", default="1gbit", help="of each host, in mbit or gbit")
    parser.add_argument("--compute-ms", type=float, default=300, help="of a step, a third of it forward")
    parser.add_argument("--model", default="transformer", choices=sorted(_MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="that count of each variant in each round")
    parser.add_argument("--variants", nargs="+", default=list(_DEFAULT), choices=list(_VARIANTS), metavar="NAME")
    parser.add_argument("--json", help="a file to write what was measured to")
    parser.add_argument("--results", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Measure on hosts, and print a table; on a host, measure."""
    options = _options(words)
    if options.results is not None:
        _measure(options)
        return
    started = time.monotonic()
    # So that the hosts are removed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with hosts(options.hosts, options.rate) as names:
        found = _measure_on(names, words, seconds=1800)
    conditions = {
        "date": time.strftime("%Y-%m-%d"),
        "hosts": options.hosts,
        "rate": options.rate,
        "compute_ms": options.compute_ms,
        "model": options.model,
        "parameters": sum(math.prod(shape) for layer in _MODELS[options.model]() for shape in layer),
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(conditions))
    print(table(found))
    if options.json:
        Path(options.json).write_text(json.dumps({"conditions": conditions, "variants": found}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
