"""What one rank needs to go on as if it had never stopped, beside its position in the epoch."""

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lightning_sm._checkpoint.rng_state import (
    counted,
    generators_in,
    numbers_in,
    random_states,
    read_generator,
    set_counted,
    set_generators,
    set_random_states,
    states_from_plain,
    states_to_plain,
    torch_states,
)
from lightning_sm._checkpoint.sampler import sampler_of, wrap
from lightning_sm._checkpoint.train_data import is_of_torchdata, keeps_order, keeps_state, reason_against
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import saves_before_epoch_hooks
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.loop_progress import LoopPosition, ResumePoint, batches_fetched
from lightning_sm._lightning.results import metric_states, metrics_of, results_of, set_metric_states, set_metrics

__all__ = ["RankState", "from_bytes", "to_bytes"]

_TENSOR = "a tensor's kind, shape, place and length"


class RankState:
    """Reads and sets what belongs to one rank: random numbers, what its loaders hold, and what it has logged.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer, in ``fit``.
    """

    def __init__(self, namespace: Namespace, trainer: Any) -> None:
        self._trainer = trainer
        self._on_cuda = bool(strategy_of(trainer).root_device.type == "cuda")
        self._metrics_known_between = not saves_before_epoch_hooks(namespace)
        self._loaders: List[Any] = []
        self._prepared = 0
        self._generators: List[Dict[str, Any]] = []
        self._at_first: List[Dict[str, Any]] = []

    def prepare(self, loader: Any, begun: Optional[Mapping[str, Any]]) -> None:
        """Make a loader's sampler one that can go on, before Lightning asks for an iterator.

        Args:
            loader: The loader.
            begun: The saved state, if an epoch goes on that had begun with it.
        """
        if not keeps_order(loader) if keeps_state(loader) else reason_against(loader) is None:
            wrap(loader, _of_data(loader))
        sampler, saved = sampler_of(loader), begun["samplers"][self._prepared :] if begun else []
        self._prepared += 1
        if keeps_state(loader) and sampler is not None and saved and saved[0] is not None:
            # It leaves out itself what it has given.
            sampler.resume(saved[0]["start"], 0, saved[0]["draws_as_it_goes"])

    def watch(self, loaders: Sequence[Any]) -> None:
        """Take these loaders for those of the training."""
        self._loaders, self._prepared = list(loaders), 0
        self._at_first = [{} if keeps_state(loader) else numbers_in(loader) for loader in loaders]
        self.find()

    def find(self) -> None:
        """Find the generators that the loaders and their data sets hold."""
        self._generators = [_generators(loader) for loader in self._loaders]

    def torch_now(self) -> Dict[str, Any]:
        """The states of torch's generators, which take no time to read."""
        return {"random_states": torch_states(self._on_cuda)}

    def now(self, position: LoopPosition) -> Dict[str, Any]:
        """Everything, as it is now.

        Args:
            position: Where the training is.
        """
        between = position.resume_point == ResumePoint.EPOCH_START
        return {
            "random_states": random_states(self._on_cuda),
            "loaders": [
                {
                    "generators": {path: read_generator(generator) for path, generator in generators.items()},
                    # Lightning restores what a loader keeps itself, and an iterator may have begun with it.
                    "numbers": {} if keeps_state(loader) else counted(loader, at_first),
                }
                for loader, generators, at_first in zip(self._loaders, self._generators, self._at_first)
            ],
            "samplers": [
                None
                if sampler is None
                else {"start": sampler.start(), "now": sampler.now(), "draws_as_it_goes": sampler.draws_as_it_goes}
                for sampler in map(sampler_of, self._loaders)
            ],
            "results": [] if between else results_of(self._trainer),
            "metric_states": (
                metric_states(self._trainer, between_epochs=between)
                if self._metrics_known_between or not between
                else {}
            ),
            "metrics": metrics_of(self._trainer),
        }

    def set_random_numbers(self, state: Mapping[str, Any], *, begun: bool) -> None:
        """Set the generators of the process, of the loaders and of the data sets.

        Args:
            state: The saved state.
            begun: Whether an epoch goes on, whose order a loader that keeps its own state knows.
        """
        for loader, generators, at_first, saved in zip(
            self._loaders, self._generators, self._at_first, state["loaders"]
        ):
            if not (begun and keeps_state(loader)):
                set_generators(generators, saved["generators"])
            set_counted(loader, saved["numbers"], at_first)
        set_random_states(states_from_plain(state["random_states"]))

    def set_samplers(self, state: Mapping[str, Any], *, only_unasked: bool = False) -> None:
        """Set what the samplers hold.

        Args:
            state: The saved state.
            only_unasked: Whether those are left out that go on already. Others may not be asked before the next epoch.
        """
        for sampler, saved in zip(map(sampler_of, self._loaders), state["samplers"]):
            if sampler is not None and saved is not None and not (only_unasked and sampler.asked):
                sampler.set(saved["now"])

    def resume_samplers(self, state: Mapping[str, Any], position: LoopPosition, *, known: bool) -> None:
        """Let the samplers give what is left of an epoch.

        Args:
            state: The saved state.
            position: Where the training goes on.
            known: Whether the state is this rank's, or one that was seeded alike.
        """
        for loader, saved in zip(self._loaders, state["samplers"]):
            sampler = sampler_of(loader)
            if sampler is not None and saved is not None and not keeps_state(loader):
                taken = batches_fetched(self._trainer, position.batch, len(sampler))
                sampler.resume(saved["start"] if known else None, taken, saved["draws_as_it_goes"])

    @staticmethod
    def has_begun(state: Mapping[str, Any]) -> bool:
        """Whether a state was read when there was an iterator over the data."""
        return any(saved is not None and saved["start"] is not None for saved in state["samplers"])

    def disarm(self) -> None:
        """Let the next iterations over the loaders be whole ones."""
        for sampler in filter(None, map(sampler_of, self._loaders)):
            sampler.disarm()

    def set_logged(self, state: Mapping[str, Any]) -> None:
        """Let callbacks see the metrics that were logged, and torchmetrics' objects count on."""
        set_metrics(self._trainer, state["metrics"], self._trainer.lightning_module.device)
        set_metric_states(self._trainer, state["metric_states"])


def _generators(loader: Any) -> Dict[str, Any]:
    """The generators that draw when data is loaded, or when a loader makes an iterator, but for its sampler's."""
    sampler = sampler_of(loader)
    if keeps_state(loader):
        # Between two epochs Lightning drops what torchdata's samplers would draw the next order from.
        batches = getattr(loader, "batch_sampler", None)
        held = {"batch_sampler": batches} if is_of_torchdata(batches) else {}
        return generators_in(held, but={} if sampler is None else sampler.generators())
    return {
        **_of_data(loader),
        **generators_in(
            {"loader": getattr(loader, "generator", None)}, but={} if sampler is None else sampler.generators()
        ),
    }


def _of_data(loader: Any) -> Dict[str, Any]:
    return generators_in({name: getattr(loader, name, None) for name in ("dataset", "collate_fn")})


def to_bytes(state: Mapping[str, Any]) -> Any:
    """Write a state as a tensor of bytes, so that ranks can gather it and each reads its own only.

    It is JSON and what tensors hold, which no version of torch has to unpickle.
    """
    import torch

    parts: List[Any] = []

    def offset_of(held: Any) -> int:
        same = (number for number, part in enumerate(parts) if len(part) == len(held) and torch.equal(part, held))
        number = next(same, len(parts))
        parts[number:] = parts[number:] or [held]
        return sum(map(len, parts[:number]))

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            held = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return {_TENSOR: [str(value.dtype)[len("torch.") :], list(value.shape), offset_of(held), len(held)]}
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    header = json.dumps(plain({**state, "random_states": states_to_plain(state["random_states"])})).encode()
    begin = bytearray(len(header).to_bytes(8, "little") + header)
    return torch.cat([torch.frombuffer(begin, dtype=torch.uint8), *parts])


def from_bytes(data: Any) -> Dict[str, Any]:
    """Read what :func:`to_bytes` wrote."""
    import torch

    data = data.cpu()
    begin = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")

    def value(pairs: Dict[str, Any]) -> Any:
        if _TENSOR not in pairs:
            return pairs
        kind, shape, offset, length = pairs[_TENSOR]
        held = data[begin + offset : begin + offset + length].clone()
        return held.view(getattr(torch, kind)).reshape(shape)

    state: Dict[str, Any] = json.loads(bytes(data[8:begin].tolist()), object_hook=value)
    return state
