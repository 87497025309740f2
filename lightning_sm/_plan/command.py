"""The command ``lightning-sm plan``."""

import argparse
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lightning_sm._options import add_options, new_parser, parse
from lightning_sm._plan.instances import Instance, find_instance, network_of
from lightning_sm._plan.measure import measure
from lightning_sm._plan.model import (
    Network,
    Option,
    Prediction,
    Workload,
    candidate_options,
    fewest_settings,
    pays_below,
    predict,
)
from lightning_sm._plan.plot import plot
from lightning_sm.errors import HyperparameterError

__all__ = ["PlanOptions", "main"]

_DESCRIPTION = """Predict throughput, hours and dollars of a training on several hosts, and what limits it.

Each process keeps its batch; with more hosts an epoch has fewer steps. With --measure, the arguments behind the options
are a training of yours (train.py --config config.yaml, or fit and the arguments behind `lightning-sm fit`): it runs on
this machine until some steps are measured, and leaves nothing behind."""

# Of each number that is given.
_MOST = 1e18
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


@dataclass(frozen=True)
class PlanOptions:
    """The options of the command.

    Args:
        params: parameters that are trained, such as 25M
        step_ms: milliseconds of a step on one host: of one batch in each process
        instance: the instance type, such as ml.g5.12xlarge
        hosts: numbers of hosts, such as 1,2,4
        batch: samples in the batch of each process
        steps: steps of the training on one host, for hours
        samples: samples of the training in all epochs, for hours; needs --batch
        price: dollars for an hour of one instance
        accumulate_grad_batches: that argument of the Trainer
        bandwidth: Gbit/s between hosts, instead of the type's
        latency_us: microseconds of a message between hosts, instead of an assumption
        gpus: GPUs of a host that train, instead of all of the type; 0 for a training on CPUs
        measure: run the program that follows, and measure step and parameters
        plot: an SVG file to write, with the throughput of each option over hosts
    """

    params: Optional[str] = None
    step_ms: Optional[PositiveFloat] = None
    instance: Optional[str] = None
    hosts: str = "1,2,4,8,16"
    batch: Optional[PositiveInt] = None
    steps: Optional[PositiveFloat] = None
    samples: Optional[PositiveFloat] = None
    price: Optional[PositiveFloat] = None
    accumulate_grad_batches: PositiveInt = 1
    bandwidth: Optional[PositiveFloat] = None
    latency_us: Optional[NonNegativeFloat] = None
    gpus: Optional[NonNegativeInt] = None
    measure: bool = False
    plot: Optional[str] = None


def main(args: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = new_parser("lightning-sm plan", _DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, PlanOptions)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="with --measure: a program and its arguments")
    given = parse(parser, args)
    program = given.pop("program")
    _plan(PlanOptions(**given), program[1:] if program[:1] == ["--"] else program)
    return 0


def _plan(options: PlanOptions, program: Sequence[str]) -> None:
    for name, value in vars(options).items():
        if isinstance(value, (int, float)):
            _check_size(name, value)
    hosts, instance = _hosts(options.hosts), _instance(options)
    if options.samples is not None and options.batch is None:
        raise HyperparameterError("--samples needs --batch.", hint="Give the batch size of a process, or --steps.")
    workload = _workload(options, program)
    network = network_of(instance, None if options.latency_us is None else options.latency_us / 1e6)
    plain = [predict(workload, network, count) for count in hosts]
    candidates = candidate_options(workload, network, max(hosts))
    print(f"{_title(workload)}\n{instance}\n")
    print(_table(options, workload, network, plain))
    limited = next((each for each in plain if each.bottleneck != "compute"), None)
    if limited is None:
        print(f"\nUp to {max(hosts)} hosts, compute is the limit: communication makes no step longer by 5 %.")
    else:
        print(f"\nThe first bottleneck is {limited.bottleneck}, from {limited.hosts} hosts on.")
    if max(hosts) > 1:
        print(_options_table(workload, network, max(hosts), instance, candidates))
    if options.plot is not None:
        curves = {str(each): [predict(workload, network, count, each) for count in hosts] for each in candidates}
        title = f"{instance.name}: {_title(workload)}"
        unit, scale = _throughput(options, workload, network)
        drawing = plot(title, unit, scale, {"plain DDP": plain, **curves})
        try:
            Path(options.plot).write_text(drawing, encoding="utf-8")
        except OSError as error:
            raise HyperparameterError(f"--plot: {error}.", hint="Name a file in a folder that is there.") from error
        print(f"\nThe plot is in {options.plot}.")


def _hosts(text: str) -> List[int]:
    if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", text):
        raise HyperparameterError(f"--hosts {text} is no list of numbers.", hint="Write it as --hosts 1,2,4.")
    return sorted({int(each) for each in text.split(",")})


def _instance(options: PlanOptions) -> Instance:
    if options.instance is None and options.bandwidth is None:
        raise HyperparameterError(
            "Neither --instance nor --bandwidth is given.", hint="Name the instance type, such as ml.g5.12xlarge."
        )
    found = Instance("hosts", 0, 0.0) if options.instance is None else find_instance(options.instance)
    if options.bandwidth is not None:
        found = replace(found, gbit=options.bandwidth, up_to=None)
    return found if options.gpus is None else replace(found, gpus=options.gpus)


def _workload(options: PlanOptions, program: Sequence[str]) -> Workload:
    """What a process computes, as the options say or as a program shows."""
    if options.measure and program:
        workload, where = measure(program)
        print(f"Measured with {where}: the plan holds for instances on which a step takes the same.")
        return workload
    if options.measure or program or options.params is None or options.step_ms is None:
        raise HyperparameterError(
            "A plan needs either --params and --step-ms, or --measure and a program behind all options.",
            hint="Such as `lightning-sm plan --measure --instance ml.g5.xlarge train.py --config config.yaml`.",
        )
    return Workload(_parameters(options.params), options.step_ms / 1e3, accumulate=options.accumulate_grad_batches)


def _parameters(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([kmbg]?)", text.lower().replace("_", ""))
    if match is None or float(match[1]) <= 0:
        raise HyperparameterError(f"--params {text} is no number of parameters.", hint="Write it as 25M or 1.3B.")
    parameters = float(match[1]) * _FACTORS[match[2]]
    _check_size("params", parameters)
    return parameters


def _check_size(name: str, value: float) -> None:
    """Refuse what is infinite, and what becomes so when it is multiplied."""
    if value > _MOST:
        raise HyperparameterError(f"--{name.replace('_', '-')} is more than {_MOST:g}.", hint="Give a smaller number.")


def _table(options: PlanOptions, workload: Workload, network: Network, plain: Sequence[Prediction]) -> str:
    unit, scale = _throughput(options, workload, network)
    steps = options.steps
    if options.samples is not None and options.batch is not None:
        steps = options.samples / options.batch / network.processes
    heads = ["hosts", "processes", "ms a step", unit, "speed-up", "efficiency", "limited by"]
    heads += ["hours"] * (steps is not None) + ["dollars"] * (steps is not None and options.price is not None)
    rows = [heads]
    for each in plain:
        row = [
            str(each.hosts),
            str(each.hosts * network.processes),
            f"{each.step_seconds * 1e3:.4g}",
            f"{scale * each.speedup:,.4g}",
            f"{each.speedup:.2f}",
            f"{each.efficiency:.0%}",
            each.bottleneck,
        ]
        if steps is not None:
            # The steps of one host are shared by all.
            hours = steps * workload.step_seconds / each.speedup / 3600
            row.append(f"{hours:,.3g}")
            if options.price is not None:
                row.append(f"{hours * each.hosts * options.price:,.2f}")
        rows.append(row)
    return _aligned(rows)


def _throughput(options: PlanOptions, workload: Workload, network: Network) -> Tuple[str, float]:
    """The unit of the throughput, and that of one host."""
    batches = network.processes / workload.step_seconds
    return ("batches/s", batches) if options.batch is None else ("samples/s", batches * options.batch)


def _options_table(
    workload: Workload, network: Network, hosts: int, instance: Instance, candidates: Sequence[Option]
) -> str:
    plain = predict(workload, network, hosts).step_seconds
    seconds = {each: predict(workload, network, hosts, each).step_seconds for each in candidates}
    rows = [[f"option, on {hosts} hosts", "ms a step", "over plain DDP", "pays up to", "learns the same"]]
    for option in candidates:
        below = pays_below(workload, network, hosts, option)
        text = "never" if below is None else "any" if below == math.inf else _gbit(below, instance)
        learns = f"no: {option.warning}" if option.warning else "yes"
        rows.append([str(option), f"{seconds[option] * 1e3:.4g}", f"{seconds[option] / plain:.2f}", text, learns])
    harmless = [each for each in candidates if not each.warning]
    chosen = fewest_settings({each: seconds[each] for each in harmless})
    gain = 1 - seconds[chosen] / plain
    verdict = f"Use {chosen}: {gain:.0%} less time." if gain > 0.02 else "No option that learns the same gains 2 %."
    return f"\n{_aligned(rows)}\n\n{verdict} Each is an option of SMDDPStrategy. Errors of the model: docs/plan.md"


def _gbit(bytes_per_second: float, instance: Instance) -> str:
    return f"{float(f'{bytes_per_second * 8 / 1e9 / instance.payload_share:.2g}'):g} Gbit/s"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _title(workload: Workload) -> str:
    counts = f"{_number(workload.parameters)} parameters, {_number(workload.gradient_bytes, 'B')} of gradients"
    return f"{counts}, {workload.step_seconds * 1e3:.4g} ms a step on one host"


def _number(value: float, unit: str = "") -> str:
    factor, letter = next((each for each in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= each[0]), (1.0, ""))
    return f"{value / factor:.3g} {letter}{unit}".rstrip()
