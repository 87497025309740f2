"""``Autotune``: how gradients are sent, chosen from the first steps of a fit and the times of its network."""

import time
from dataclasses import dataclass, replace
from statistics import median
from types import SimpleNamespace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from lightning_sm._distributed.communication import AUTO, Communication, bucket_hook, sum_error
from lightning_sm._logging import log
from lightning_sm._plan import Network, Option, Workload, fewest_settings, predict
from lightning_sm.errors import HyperparameterError, StrategyUnavailableError

__all__ = ["MEASURED_STEPS", "SKIPPED_STEPS", "Autotune", "Measurement", "candidates"]

#: Optimizer steps of a fit that are too slow to be measured, and those after them that are measured.
SKIPPED_STEPS, MEASURED_STEPS = 5, 10
# The bytes of gradients whose sum is timed, at most, and how often: for some seconds at 200 Mbit/s.
_PROBE_BYTES, _PROBES = 2**23, 3
_BUCKETS_MB = (None, 25, 10, 5, 2, 1, 50, 100)
# What is named in the log beside the choice, and never chosen.
_LOCAL_STEPS = 16


class _SumsAsTimed(Network):
    """A network on which a sum takes ``latency`` and its bytes over ``bytes_per_second``, as was timed among all."""

    def all_reduce(self, size: float, hosts: int) -> float:
        return self.latency + size / self.bytes_per_second


@dataclass(frozen=True)
class Measurement:
    """What the first steps of a fit have shown.

    Args:
        processes: The processes that train.
        workload: The parameters, and the time of a step without waiting for the network.
        latency: Of a sum of one number, in seconds.
        seconds_per_byte: Of a sum of gradients, by the way in which they are sent: ``None`` as they are.
    """

    processes: int
    workload: Workload
    latency: float
    seconds_per_byte: Mapping[Optional[str], float]

    def step_seconds(self, option: Option) -> float:
        """What a step is predicted to take with an option, in seconds."""
        share = option.wire_share(self.workload)
        network = _SumsAsTimed(share / self.seconds_per_byte[option.gradient_compression], self.latency)
        return predict(self.workload, network, self.processes, option).step_seconds

    def choose(self, options: Sequence[Option]) -> Option:
        """Return the one with the fewest settings of those that are about as fast as the fastest one."""
        possible = [each for each in options if each.gradient_compression in self.seconds_per_byte]
        return fewest_settings({each: self.step_seconds(each) for each in possible})

    def describe(self, chosen: Option) -> str:
        """What was measured, what was chosen, and what would be faster but changes what is learned."""
        given = Option(next(iter(self.seconds_per_byte)))
        local = replace(given, local_steps=_LOCAL_STEPS)
        sum_seconds = self.latency + self.seconds_per_byte[given.gradient_compression] * self.workload.gradient_bytes
        return (
            f"{chosen}: a step takes {_ms(self.workload.step_seconds)} without the network, a sum of all gradients "
            f"{_ms(sum_seconds)} among {self.processes} processes; {_ms(self.step_seconds(chosen))} a step are "
            f"predicted, with {given} {_ms(self.step_seconds(given))}. Never chosen, as it changes what is learned: "
            f"local_steps={_LOCAL_STEPS}, {_ms(self.step_seconds(local))}"
        )


def candidates(gradient_compression: Optional[str], bucket_cap_mb: Union[float, str, None]) -> List[Option]:
    """Return the options to choose from: what is not ``auto`` is fixed, and nothing changes more than rounding does.

    Of options that are about as fast, the first is taken: large buckets cost the processes less.
    """
    ways = [None, "bf16"] if gradient_compression == AUTO else [gradient_compression]
    sizes = _BUCKETS_MB if bucket_cap_mb == AUTO else [bucket_cap_mb]
    return [Option(way, bucket_cap_mb=None if size is None else float(size)) for way in ways for size in sizes]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


class Autotune(Communication):
    """Measures the first steps of a fit, which are plain DDP's, and then sends as is predicted to be fastest.

    Global rank 0's numbers decide for all. DDP takes the size of its buckets when it is constructed only, so the model
    is wrapped again between two steps. The choice belongs to the saves of the job: a restarted one goes on with it, and
    measures again only if another number of processes trains.

    Args:
        strategy: The ``SMDDPStrategy`` whose model has been wrapped.
        gradient_compression: ``auto``, or how gradients are sent.
        bucket_cap_mb: ``auto``, or the size of buckets in MiB.

    Raises:
        HyperparameterError: The device is neither a CPU nor a GPU.
        StrategyUnavailableError: This torch cannot wrap a model again.
    """

    def __init__(
        self, strategy: Any, gradient_compression: Optional[str], bucket_cap_mb: Union[float, str, None]
    ) -> None:
        super().__init__(strategy.model)
        if not hasattr(torch.nn.parallel.DistributedDataParallel, "_remove_autograd_hooks"):
            raise StrategyUnavailableError(
                f"SMDDPStrategy: auto wraps the model again, which needs torch 2.1 or newer, not {torch.__version__}.",
                hint="Set gradient_compression and bucket_cap_mb, or leave them out.",
            )
        self._strategy, self._device = strategy, strategy.root_device
        if self._device.type not in ("cpu", "cuda"):
            raise HyperparameterError(
                f"SMDDPStrategy: nothing is measured on {self._device.type}, so nothing can be chosen by auto.",
                hint="Set gradient_compression and bucket_cap_mb, or leave them out.",
            )
        self._options = candidates(gradient_compression, bucket_cap_mb)
        self._ways = list(dict.fromkeys(each.gradient_compression for each in self._options))
        self._chosen: Optional[Option] = None
        self._accumulate = 0
        # When the last forward began and ended, and when the last gradient of the last backward was ready.
        self._began = self._forwarded = self._ready = _now(self._device)
        self._seen: List[Tuple[Any, Any, Any]] = []
        self._send = bucket_hook(self._ways[0])
        self.model.register_forward_pre_hook(self._before_forward)
        self.model.register_forward_hook(self._after_forward)
        self.register(self._send_and_note)

    def _before_forward(self, *args: Any) -> None:
        self._began = _now(self._device)

    def _after_forward(self, *args: Any) -> None:
        self._forwarded = _now(self._device)

    def _send_and_note(self, bucket: Any) -> Any:
        # Buckets come in the order of their indexes.
        if bucket.is_last():
            self._ready = _now(self._device)
        return self._send(bucket)

    def setup(self, strategy: Any) -> None:
        """Check how the model is optimized.

        Raises:
            HyperparameterError: The model runs its own backward passes.
        """
        module = strategy.lightning_module
        if not module.automatic_optimization:
            raise HyperparameterError(
                "SMDDPStrategy: auto cannot be used with manual optimization, whose steps may have several backward "
                "passes.",
                hint="Set gradient_compression and bucket_cap_mb, or leave them out.",
            )
        self._accumulate = int(module.trainer.accumulate_grad_batches)

    def after_step(self) -> None:
        """Note the step, and choose after enough of them."""
        if self._chosen is not None:
            return
        self._seen.append((self._began, self._forwarded, self._ready))
        if len(self._seen) == SKIPPED_STEPS + MEASURED_STEPS:
            del self._seen[:SKIPPED_STEPS]
            measurement = self._measure()
            chosen: Option = self._strategy.broadcast(measurement.choose(self._options))
            self._use(chosen)
            self._tell(f"chose {measurement.describe(chosen)}.")

    def _measure(self) -> Measurement:
        """What the steps have shown, and the times of some sums. Collective."""
        trained = [each for each in self.model.module.parameters() if each.requires_grad]
        parameters = sum(each.numel() for each in trained)
        size = sum(each.numel() * each.element_size() for each in trained)
        forward = median(_seconds(began, forwarded) for began, forwarded, _ in self._seen)
        backward = max(median(_seconds(forwarded, ready) for _, forwarded, ready in self._seen), 0.0)
        workload = Workload(
            parameters, forward + backward, round(size / parameters), self._accumulate, forward / (forward + backward)
        )
        # Gradients of 16 bits are no faster as bf16.
        gradient = trained[0].detach()
        latency = self._time_sum(None, gradient.new_zeros(1))
        probe = gradient.new_zeros(min(parameters, _PROBE_BYTES // gradient.element_size()))
        probed = probe.numel() * probe.element_size()
        ways = [self._ways[0], *(way for way in self._ways[1:] if sum_error(str(way), self._device) is None)]
        per_byte = {way: max(self._time_sum(way, probe) - latency, 1e-9) / probed for way in ways}
        return Measurement(torch.distributed.get_world_size(), workload, latency, per_byte)

    def _time_sum(self, way: Optional[str], gradients: Any) -> float:
        """The seconds that a sum of gradients takes that are sent in this way. Collective."""
        # As much of DDP's buckets as torch's hooks need.
        bucket = SimpleNamespace(buffer=lambda: gradients)
        hook = bucket_hook(way)
        found = []
        for _ in range(_PROBES + 1):
            began = _now(self._device)
            hook(bucket).wait()
            found.append(_seconds(began, _now(self._device)))
        # The first one has waited for the other processes, too.
        return median(found[1:])

    def _use(self, option: Option) -> None:
        """Send as an option says from the next step on. Collective."""
        self._chosen = option
        self._seen = []
        # The earlier wrapper holds as many bytes as all gradients.
        self.model = None
        self.model = self._strategy.wrap_again(option.bucket_cap_mb)
        if option.gradient_compression is not None:
            self.send_as(option.gradient_compression)

    def _tell(self, text: str) -> None:
        if self._strategy.global_rank == 0:
            log.info("SMDDPStrategy: %s", text)

    def state(self) -> Optional[Dict[str, Any]]:
        """The choice."""
        if self._chosen is None:
            return None
        return {"gradient_compression": self._chosen.gradient_compression, "bucket_cap_mb": self._chosen.bucket_cap_mb}

    def load(self, state: Mapping[str, Any], is_same_world: bool) -> None:
        """Go on with the choice; with another number of processes, or other options, measure again."""
        if not is_same_world or "bucket_cap_mb" not in state:
            return
        option = Option(state["gradient_compression"], bucket_cap_mb=state["bucket_cap_mb"])
        if option in self._options:
            self._use(option)
            self._tell(f"goes on with what the job has chosen before: {option}.")


def _now(device: Any) -> Any:
    """A moment: of a GPU's stream as an event, else a time in seconds."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(began: Any, ended: Any) -> float:
    if isinstance(began, float):
        return float(ended - began)
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
