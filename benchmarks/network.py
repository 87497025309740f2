"""Steps of DDP among hosts on a network of a given bandwidth: ``DDPStrategy``, and ours with each option, in turn.

Run ``python benchmarks/network.py`` as root, with ``ip`` and ``tc`` (Debian: iproute2). Each host is a network
namespace with one process of gloo; a switch in a namespace of its own connects them, and ``tc`` limits what each host
sends and receives. So nothing of the machine's own network changes. Computing is asleep and gradients are filled with a
number, so that several hosts fit on two cores, as they would on GPUs: a third of the time in forward, two thirds in
backward, the same for each layer. The optimizer does not change weights. What is left is what is measured: DDP, gloo
and the network.

In each round all variants train one after the other, in an order that changes. The times of a step are medians over
rounds with the least and the greatest one, those of global rank 0; bytes are those that its interface has sent.

With ``--losses`` each variant also trains a small transformer on bytes of the standard library's source: the same
samples and learning rates, PowerSGD and local steps after a tenth of the steps. The loss is that of held-out bytes.
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

from _two_processes import end_process_group

# Of a packet of 1,500 bytes, 52 are headers of IP and TCP; 14 more are Ethernet's.
_PAYLOAD = 1448 / 1514
_WARMUP_STEPS = 3
_UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8}
_VARIANTS: Dict[str, Optional[Dict[str, Any]]] = {
    "DDPStrategy": None,
    "view": {},
    "bucket_cap_mb=5": {"bucket_cap_mb": 5},
    "bf16, bucket_cap_mb=5": {"gradient_compression": "bf16", "bucket_cap_mb": 5},
    "auto": {"gradient_compression": "auto", "bucket_cap_mb": "auto"},
    "powersgd, rank 4": {"gradient_compression": "powersgd", "powersgd_rank": 4},
    "local_steps=16": {"local_steps": 16},
    "local_steps=16, outer": {"local_steps": 16, "outer_lr": 0.7, "outer_momentum": 0.9},
}


# --- the model, as the shapes of the parameters of each layer

Shapes = List[Tuple[int, ...]]


def _transformer() -> List[Shapes]:
    """Eight blocks of width 512: 25.5 million parameters."""
    width = 512
    attention: Shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    feed_forward: Shapes = [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [[(256, width), (256, width)], *[attention, feed_forward] * 8, [(width,), (width,), (256, width)]]


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


def _on_hosts(options: argparse.Namespace, rate: str, what: str, words: Sequence[str]) -> Any:
    """Run this script on each of the hosts, and return what global rank 0 has found."""
    with hosts(options.hosts, rate) as names:
        return _run_on(names, [*words, "--rates", rate, "--on-host", what], seconds=3600)


def _run_on(names: Sequence[str], words: Sequence[str], seconds: float) -> Any:
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
        return json.loads(results.read_text())


# --- one host


class _Measured(NamedTuple):
    """What a variant took in one round: seconds and bytes of a step, and the peak of the process's memory in MiB."""

    seconds: float
    sent: float
    memory: float


def _sent() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    return int(line.split(":")[1].split()[8])


def _on_host(options: argparse.Namespace) -> None:
    """Find what this host is to find, and write it on global rank 0."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric", "lightning_sm"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found = {"steps": _measure, "losses": _losses}[options.on_host](options)
    if _is_main():
        Path(options.results).write_text(json.dumps(found))
    dist.barrier()
    end_process_group()


def _is_main() -> bool:
    return os.environ["RANK"] == "0"


def _tell(text: str) -> None:
    if _is_main():
        print(text, file=sys.stderr, flush=True)


def _strategy(name: str, warmup_steps: int) -> Any:
    """The strategy of a variant."""
    import pytorch_lightning as pl

    import lightning_sm

    given = _VARIANTS[name]
    if given is None:
        return pl.strategies.DDPStrategy()
    has_warmup = "local_steps" in given or given.get("gradient_compression") == "powersgd"
    more: Dict[str, Any] = {"communication_warmup_steps": warmup_steps} if has_warmup else {}
    return lightning_sm.SMDDPStrategy(gradient_as_bucket_view=True, **given, **more)


def _steps_before(name: str) -> int:
    """The steps of a variant that are not timed."""
    from lightning_sm._distributed.autotune import MEASURED_STEPS, SKIPPED_STEPS

    is_auto = "auto" in (_VARIANTS[name] or {}).values()
    return _WARMUP_STEPS + (SKIPPED_STEPS + MEASURED_STEPS if is_auto else 0)


def _measure(options: argparse.Namespace) -> List[Dict[str, Any]]:
    """Train all variants, round by round, and return what was measured."""
    import pytorch_lightning as pl
    import torch
    import torch.distributed as dist

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

        def __init__(self, steps_before: int) -> None:
            self.steps, self.steps_before = 0, steps_before

        def on_train_batch_end(self, trainer: Any, *args: object) -> None:
            self.steps += 1
            if self.steps == self.steps_before:
                dist.barrier()
                self.began, self.before = time.perf_counter(), _sent()

        def on_train_end(self, trainer: Any, *args: object) -> None:
            steps = self.steps - self.steps_before
            seconds = (time.perf_counter() - self.began) / steps
            if self.steps_before > _WARMUP_STEPS:
                _tell(f"auto chose {trainer.strategy.communication_state()}")
            peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
            self.measured = _Measured(seconds, (_sent() - self.before) / steps, int(peak.split()[1]) / 1024)

    def train(name: str) -> _Measured:
        # Whole periods, each with its average.
        period = (_VARIANTS[name] or {}).get("local_steps", 1)
        steps = math.ceil(options.steps / period) * period
        strategy = _strategy(name, _WARMUP_STEPS)
        clock = Clock(_steps_before(name))
        # The peak of memory begins anew, without what the variant before has left.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, num_nodes=options.hosts, strategy=strategy, callbacks=[clock], logger=False,
            max_steps=_steps_before(name) + steps, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False,
        )  # fmt: skip
        samples: Any = range(1000 * options.hosts)
        trainer.fit(Model(_transformer()), torch.utils.data.DataLoader(samples))
        return clock.measured

    variants: List[str] = options.variants
    measured: Dict[str, List[_Measured]] = {name: [] for name in variants}
    for number in range(options.rounds):
        start = number % len(variants)
        for name in variants[start:] + variants[:start]:
            measured[name].append(train(name))
            took = measured[name][-1].seconds * 1000
            _tell(f"{options.rates[0]}, round {number + 1} of {options.rounds}: {name}: {took:.0f} ms a step")
    return [_summary(name, measured, options) for name in variants]


def _losses(options: argparse.Namespace) -> Dict[str, float]:
    """Train a transformer under each variant, and return the loss of each on bytes that it has not seen."""
    import pytorch_lightning as pl
    import torch

    nn, functional = torch.nn, torch.nn.functional
    width, length, steps = 128, 64, options.loss_steps
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    content = bytearray(b"".join(path.read_bytes() for path in sources)[:6_000_000])
    source = torch.frombuffer(content, dtype=torch.uint8)
    seen = int(len(source) * 0.95)

    def batches(first: int, last: int, size: int, count: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            starts = torch.randint(first, last - length - 1, (size,), generator=generator)
            texts = torch.stack([source[start : start + length + 1] for start in starts]).long()
            yield texts[:, :-1], texts[:, 1:]

    class Transformer(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
            self.blocks = nn.TransformerEncoder(block, 4, nn.LayerNorm(width), enable_nested_tensor=False)
            # An encoder copies its layer, weights included.
            for parameter in self.blocks.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
            self.head = nn.Linear(width, 256)
            self.mask = nn.Transformer.generate_square_subsequent_mask(length)

        def loss(self, batch: Any) -> Any:
            inputs, targets = batch
            values = self.bytes(inputs) + self.positions.weight
            found = self.head(self.blocks(values, mask=self.mask, is_causal=True))
            return functional.cross_entropy(found.flatten(0, 1), targets.flatten())

        def training_step(self, batch: Any, index: int) -> Any:
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(10 * (step + 1) / steps, max(0.05, 1 - step / steps))
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    found = {}
    for name in options.variants:
        began = time.perf_counter()
        model = Transformer()
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, num_nodes=options.hosts, strategy=_strategy(name, max(2, steps // 10)),
            max_steps=steps, gradient_clip_val=1.0, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, use_distributed_sampler=False,
        )  # fmt: skip
        samples: Any = list(batches(0, seen, 16, steps, 1 + int(os.environ["RANK"])))
        trainer.fit(model, torch.utils.data.DataLoader(samples, batch_size=None))
        with torch.no_grad():
            losses = [float(model.loss(batch)) for batch in batches(seen, len(source), 32, 20, 0)]
        found[name] = round(statistics.mean(losses), 4)
        _tell(f"final loss of {name}: {found[name]:.4f}, {time.perf_counter() - began:.0f} s")
    return found


def _summary(name: str, measured: Dict[str, List[_Measured]], options: argparse.Namespace) -> Dict[str, Any]:
    own, first = measured[name], measured[options.variants[0]]
    seconds = statistics.median(each.seconds for each in own)
    sent = statistics.median(each.sent for each in own)
    ratios = [mine.seconds / other.seconds for mine, other in zip(own, first)]
    wire, compute = sent / _bandwidth(options.rates[0]), options.compute_ms / 1000
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


def table(rows: Sequence[Dict[str, Any]], losses: Dict[str, float]) -> str:
    """What was measured as a table in Markdown."""
    heads = ["Variant", "Step, ms", "Ratio", "Sent, MB", "Bound, ms", "Share of it", "Peak, MiB"]
    if losses:
        heads.append("Final loss")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        line = (
            "| {variant} | {step_ms:.0f} ({step_ms_min:.0f} to {step_ms_max:.0f}) | {ratio:.3f} ({ratio_min:.3f} to "
            "{ratio_max:.3f}) | {sent_mb:.1f} | {bound_ms:.0f} | {share_of_bound:.2f} | {peak_mib} |".format(**row)
        )
        lines.append(f"{line} {losses[row['variant']]:.4f} |" if losses else line)
    return "\n".join(lines)


def _plot(options: argparse.Namespace, found: Dict[str, List[Dict[str, Any]]]) -> None:
    """Draw a panel for each rate, with a bar for each variant, its least and its greatest time, and its bound."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(found), figsize=(8, 2.5 * len(found)), layout="constrained", squeeze=False)
    figure.suptitle(
        f"A step of a transformer on {options.hosts} hosts, {options.compute_ms:g} ms of it compute; "
        "the mark is the bound"
    )
    for panel, (rate, rows) in zip(panels[:, 0], found.items()):
        names = [row["variant"] for row in rows]
        panel.barh(names, [row["step_ms"] for row in rows], color="#56b4e9")
        panel.hlines(names, [row["step_ms_min"] for row in rows], [row["step_ms_max"] for row in rows], color="#444444")
        panel.plot([row["bound_ms"] for row in rows], names, "|", color="#d55e00", markersize=12)
        panel.set(title=f"{rate}/s", xlabel="ms")
        panel.invert_yaxis()
    figure.savefig(options.plot)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, choices=(2, 3, 4))
    parser.add_argument(
        "--rates", nargs="+", default=["1gbit"], help="of each host, one after the other: 200mbit 1gbit"
    )
    parser.add_argument("--compute-ms", type=float, default=300, help="of a step, a third of it forward")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="that count of each variant in each round")
    parser.add_argument("--variants", nargs="+", default=list(_VARIANTS), choices=list(_VARIANTS), metavar="NAME")
    parser.add_argument("--losses", action="store_true", help="train each variant, too, and show its final loss")
    parser.add_argument("--loss-steps", type=int, default=400, help="of these trainings")
    parser.add_argument("--plot", help="a file to draw the steps to, by matplotlib")
    parser.add_argument("--on-host", choices=("steps", "losses"), help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Measure on hosts, and print a table for each rate; on a host, measure."""
    options = _options(words)
    if options.on_host is not None:
        _on_host(options)
        return
    started = time.monotonic()
    # So that the hosts are removed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    load = round(os.getloadavg()[0], 1)
    found = {rate: _on_hosts(options, rate, "steps", words) for rate in options.rates}
    # Losses do not depend on the rate.
    losses = _on_hosts(options, "10gbit", "losses", words) if options.losses else {}
    conditions = {
        "date": time.strftime("%Y-%m-%d"),
        "hosts": options.hosts,
        "compute_ms": options.compute_ms,
        "parameters": sum(math.prod(shape) for layer in _transformer() for shape in layer),
        "rounds": options.rounds,
        "loss_steps": options.loss_steps if options.losses else None,
        "cores": os.cpu_count(),
        "load": load,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(conditions))
    for rate, rows in found.items():
        print(f"\n{rate}\n\n{table(rows, losses)}")
    if options.plot:
        _plot(options, found)


if __name__ == "__main__":
    main(sys.argv[1:])
