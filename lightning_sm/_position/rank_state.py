"""``RankState``: what a rank needs, beside its position in the epoch, to continue as if never interrupted."""

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import saves_before_epoch_hooks
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.loop_progress import LoopPosition, ResumePoint, batches_fetched
from lightning_sm._lightning.results import metric_states, metrics_of, results_of, set_metric_states, set_metrics
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._position.rng_state import (
    changed_counters,
    find_counters,
    find_generators,
    get_generator_state,
    get_rng_states,
    get_torch_rng_states,
    rng_states_from_plain,
    rng_states_to_plain,
    set_counters,
    set_generator_states,
    set_rng_states,
)
from lightning_sm._position.sampler import (
    is_from_torchdata,
    is_stateful,
    resumable_sampler_of,
    saves_order,
    unsupported_reason,
    wrap_sampler,
)

__all__ = ["RankState", "state_from_tensor", "state_to_tensor"]

_TENSOR = "tensor: dtype, shape, offset, size"


class RankState:
    """Reads and restores the state of one rank: random numbers, samplers and loaders, and logged metrics.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer, in ``fit``.
    """

    def __init__(self, namespace: Namespace, trainer: Trainer) -> None:
        self._trainer = trainer
        self._on_cuda = bool(strategy_of(trainer).root_device.type == "cuda")
        self._has_metrics_between_epochs = not saves_before_epoch_hooks(namespace)
        self._loaders: List[Any] = []
        self._prepared = 0
        self._generators: List[Dict[str, Any]] = []
        self._initial_counters: List[Dict[str, Any]] = []

    def prepare_loader(self, loader: Any, resumed: Optional[Mapping[str, Any]]) -> None:
        """Replace a loader's sampler by a resumable one, before Lightning creates an iterator.

        Args:
            loader: The loader.
            resumed: The saved state, if the resumed epoch had started with it.
        """
        if not saves_order(loader) if is_stateful(loader) else unsupported_reason(loader) is None:
            wrap_sampler(loader, _data_generators(loader))
        sampler, saved = resumable_sampler_of(loader), resumed["samplers"][self._prepared :] if resumed else []
        self._prepared += 1
        if is_stateful(loader) and sampler is not None and saved and saved[0] is not None:
            # The loader itself skips the items that were used.
            sampler.resume(saved[0]["start"], 0, saved[0]["draws_lazily"])

    def set_loaders(self, loaders: Sequence[Any]) -> None:
        """Set the loaders of the training."""
        self._loaders, self._prepared = list(loaders), 0
        self._initial_counters = [{} if is_stateful(loader) else find_counters(loader) for loader in loaders]
        self.find_generators()

    def find_generators(self) -> None:
        """Find the generators that the loaders and their data sets reference."""
        self._generators = [_generators(loader) for loader in self._loaders]

    def torch_rng_states(self) -> Dict[str, Any]:
        """Return the part of :meth:`state` that takes no time to read: torch's generators."""
        return {"rng_states": get_torch_rng_states(self._on_cuda)}

    def state(self, position: LoopPosition) -> Dict[str, Any]:
        """Return the current state of this rank.

        Args:
            position: The current position of the training.
        """
        between = position.resume_point == ResumePoint.EPOCH_START
        return {
            "rng_states": get_rng_states(self._on_cuda),
            "loaders": [
                {
                    "generators": {path: get_generator_state(generator) for path, generator in generators.items()},
                    # Lightning restores a stateful loader, possibly before the first iterator.
                    "counters": {} if is_stateful(loader) else changed_counters(loader, initial),
                }
                for loader, generators, initial in zip(self._loaders, self._generators, self._initial_counters)
            ],
            "samplers": [
                None
                if sampler is None
                else {
                    "start": sampler.start_state(),
                    "current": sampler.state(),
                    "draws_lazily": sampler.draws_lazily,
                }
                for sampler in map(resumable_sampler_of, self._loaders)
            ],
            "results": [] if between else results_of(self._trainer),
            "metric_states": (
                metric_states(self._trainer, between_epochs=between)
                if self._has_metrics_between_epochs or not between
                else {}
            ),
            "metrics": metrics_of(self._trainer),
        }

    def restore_rng(self, state: Mapping[str, Any], *, within_epoch: bool) -> None:
        """Set the global generators, and those of the loaders and data sets.

        Args:
            state: The saved state.
            within_epoch: Whether an epoch is resumed whose order a stateful loader has restored already.
        """
        for loader, generators, initial, saved in zip(
            self._loaders, self._generators, self._initial_counters, state["loaders"]
        ):
            if not (within_epoch and is_stateful(loader)):
                set_generator_states(generators, saved["generators"])
            set_counters(loader, saved["counters"], initial)
        set_rng_states(rng_states_from_plain(state["rng_states"]))

    def restore_samplers(self, state: Mapping[str, Any], *, only_not_started: bool = False) -> None:
        """Set the generators and counters of the samplers.

        Args:
            state: The saved state.
            only_not_started: Whether to skip samplers that have resumed already. The others may not be iterated before
                the next epoch.
        """
        for sampler, saved in zip(map(resumable_sampler_of, self._loaders), state["samplers"]):
            if sampler is not None and saved is not None and not (only_not_started and sampler.has_started):
                sampler.set_state(saved["current"])

    def resume_samplers(self, state: Mapping[str, Any], position: LoopPosition, *, is_own: bool) -> None:
        """Let the next iteration over each sampler continue the interrupted epoch.

        Args:
            state: The saved state.
            position: The position at which the training resumes.
            is_own: Whether the state is this rank's, or that of a rank with the same seed.
        """
        for loader, saved in zip(self._loaders, state["samplers"]):
            sampler = resumable_sampler_of(loader)
            if sampler is not None and saved is not None and not is_stateful(loader):
                fetched = batches_fetched(self._trainer, position.batch, len(sampler))
                sampler.resume(saved["start"] if is_own else None, fetched, saved["draws_lazily"])

    @staticmethod
    def has_started(state: Mapping[str, Any]) -> bool:
        """Whether a state was read when an iterator over the data existed."""
        return any(saved is not None and saved["start"] is not None for saved in state["samplers"])

    def cancel_resume(self) -> None:
        """Let the next iterations over the loaders be complete ones."""
        for sampler in filter(None, map(resumable_sampler_of, self._loaders)):
            sampler.cancel_resume()

    def restore_metrics(self, state: Mapping[str, Any]) -> None:
        """Restore ``trainer.callback_metrics`` and the states of torchmetrics objects."""
        set_metrics(self._trainer, state["metrics"], self._trainer.lightning_module.device)
        set_metric_states(self._trainer, state["metric_states"])


def _generators(loader: Any) -> Dict[str, Any]:
    """Find the generators that are used to load data or to create an iterator, except for the sampler's."""
    sampler = resumable_sampler_of(loader)
    exclude = {} if sampler is None else sampler.generators()
    if is_stateful(loader):
        # Between two epochs Lightning drops the state from which torchdata's samplers draw the next order.
        batch_sampler = getattr(loader, "batch_sampler", None)
        return find_generators(
            {"batch_sampler": batch_sampler} if is_from_torchdata(batch_sampler) else {}, exclude=exclude
        )
    own = find_generators({"loader": getattr(loader, "generator", None)}, exclude=exclude)
    return {**_data_generators(loader), **own}


def _data_generators(loader: Any) -> Dict[str, Any]:
    return find_generators({name: getattr(loader, name, None) for name in ("dataset", "collate_fn")})


def state_to_tensor(state: Mapping[str, Any]) -> Any:
    """Encode a state as a tensor of bytes, which ranks can gather and of which each rank decodes its own only.

    The bytes are a JSON header and the contents of the tensors, so no version of torch has to unpickle them.
    """
    import torch

    parts: List[Any] = []

    def offset_of(data: Any) -> int:
        same = (number for number, part in enumerate(parts) if len(part) == len(data) and torch.equal(part, data))
        number = next(same, len(parts))
        parts[number:] = parts[number:] or [data]
        return sum(map(len, parts[:number]))

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return {_TENSOR: [str(value.dtype)[len("torch.") :], list(value.shape), offset_of(data), len(data)]}
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    header = json.dumps(plain({**state, "rng_states": rng_states_to_plain(state["rng_states"])})).encode()
    start = bytearray(len(header).to_bytes(8, "little") + header)
    return torch.cat([torch.frombuffer(start, dtype=torch.uint8), *parts])


def state_from_tensor(encoded: Any) -> Dict[str, Any]:
    """Decode the result of :func:`state_to_tensor`."""
    import torch

    encoded = encoded.cpu()
    start = 8 + int.from_bytes(bytes(encoded[:8].tolist()), "little")

    def decode(pairs: Dict[str, Any]) -> Any:
        if _TENSOR not in pairs:
            return pairs
        dtype, shape, offset, size = pairs[_TENSOR]
        data = encoded[start + offset : start + offset + size].clone()
        return data.view(getattr(torch, dtype)).reshape(shape)

    state: Dict[str, Any] = json.loads(bytes(encoded[8:start].tolist()), object_hook=decode)
    return state
