"""``finished.json``, which marks a completed training, and checks of whether a model holds its trained weights.

``WeightAveraging``, stochastic weight averaging and similar callbacks replace a model's weights at the end of training
or during validation. Sums of each tensor tell whether that has happened, without a copy of the weights.
"""

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._atomic_file import replace_atomically
from lightning_sm._checkpoint.candidates import FINAL_WEIGHTS, Candidate
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import all_true
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of
from lightning_sm._logging import log

__all__ = [
    "FINISHED_FILE",
    "Finished",
    "TrainedWeights",
    "ended_with_other_weights",
    "had_finished",
    "limits_to_json",
    "read_finished",
    "remove_finished",
    "training_limits",
    "weight_sums",
    "write_finished",
]

#: The name of the file in the checkpoint directory.
FINISHED_FILE = "finished.json"
# The arguments of EarlyStopping that affect when it stops.
_EARLY_STOPPING = ("monitor", "mode", "min_delta", "patience", "stopping_threshold", "divergence_threshold")


@dataclass(frozen=True)
class Finished:
    """The contents of ``finished.json``.

    Args:
        checkpoint: The last checkpoint of the training, as a path relative to the checkpoint directory.
        epoch: The checkpoint's ``epoch``.
        global_step: The checkpoint's ``global_step``.
        limits: What ended the training, such as ``max_epochs``; a restart with other limits may continue.
        job_name: The name of the training job; ``None`` if it has none.
        is_over: Whether all ``on_train_end`` hooks have returned. Until then callbacks may replace the weights.
        weights: The checkpoint with the weights after those hooks; ``None`` if they replaced none.
    """

    checkpoint: str
    epoch: int
    global_step: int
    limits: Mapping[str, Any] = field(default_factory=dict)
    job_name: Optional[str] = None
    is_over: bool = False
    weights: Optional[str] = None

    def matches(self, candidate: Candidate, limits: Mapping[str, Any]) -> bool:
        """Whether a job with these limits that resumes from this checkpoint has no steps left to train."""
        same = candidate.name in (self.checkpoint, self.weights) and self.global_step == candidate.global_step
        if self.job_name is not None and candidate.job is not None and candidate.job.name is not None:
            same = same and self.job_name == candidate.job.name
        return same and self.limits == limits_to_json(limits)

    def has_final_weights(self, candidate: Candidate) -> bool:
        """Whether the checkpoint holds the weights after all ``on_train_end`` hooks."""
        return self.is_over and self.weights in (None, candidate.name)


def write_finished(directory: str, finished: Finished) -> None:
    """Write ``finished.json`` to the checkpoint directory atomically.

    Raises:
        OSError: It cannot be written.
    """
    partial_path = os.path.join(directory, f".{FINISHED_FILE}.new")
    with open(partial_path, "w", encoding="utf-8") as file:
        json.dump(asdict(finished), file, indent=2, default=str)
    replace_atomically(partial_path, os.path.join(directory, FINISHED_FILE))


def read_finished(directory: str) -> Optional[Finished]:
    """Return the contents of ``finished.json``; ``None`` if there is none or it cannot be read."""
    try:
        with open(os.path.join(directory, FINISHED_FILE), encoding="utf-8") as file:
            return Finished(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def had_finished(directory: str, resumed: Candidate, limits: Mapping[str, Any]) -> Tuple[bool, bool]:
    """Return whether the training had ended with this checkpoint, and whether the checkpoint has its final weights.

    Args:
        directory: The checkpoint directory with ``finished.json``.
        resumed: The checkpoint that the job resumes from.
        limits: The limits of the job, from :func:`training_limits`.
    """
    finished = read_finished(directory)
    if finished is not None and finished.matches(resumed, limits):
        return True, finished.has_final_weights(resumed)
    return resumed.stopped_by == limits_to_json(limits), False


def ended_with_other_weights(directory: str, limits: Mapping[str, Any]) -> bool:
    """Whether a training with these limits had ended there, and callbacks then changed the weights.

    Args:
        directory: The checkpoint directory with ``finished.json``.
        limits: The limits of the job, from :func:`training_limits`.
    """
    finished = read_finished(directory)
    return finished is not None and finished.limits == limits_to_json(limits) and finished.weights == FINAL_WEIGHTS


def remove_finished(directory: str) -> None:
    """Remove ``finished.json``, because training continues."""
    with suppress(OSError):  # one that remains has no effect: its global_step no longer matches
        os.remove(os.path.join(directory, FINISHED_FILE))


def limits_to_json(limits: Mapping[str, Any]) -> Any:
    """Return limits as they are read back from JSON."""
    return json.loads(json.dumps(limits, default=str))


def training_limits(namespace: Namespace, trainer: Trainer) -> Dict[str, Any]:
    """Return what ends a trainer's ``fit``: its limits, and the arguments of ``Timer`` and ``EarlyStopping``."""
    limits = {name: getattr(trainer, name) for name in ("min_epochs", "max_epochs", "min_steps", "max_steps")}
    callbacks = namespace.module("callbacks")
    for kind, names in ((callbacks.Timer, ("_duration",)), (callbacks.EarlyStopping, _EARLY_STOPPING)):
        for callback in callbacks_of(trainer):
            if isinstance(callback, kind):
                values = {name.lstrip("_"): getattr(callback, name, None) for name in names}
                limits.setdefault(kind.__name__, []).append(values)
    return limits


def weight_sums(module: Any) -> List[float]:
    """Return the sum of each parameter and buffer, which changes when callbacks replace the weights."""
    return [float(total) for total in _tensor_sums((*module.parameters(), *module.buffers()))]


def _tensor_sums(tensors: Iterable[Any]) -> List[Any]:
    """Return the sum of each tensor as a tensor on its device, without synchronizing with it."""
    import torch

    sums: List[Any] = []
    with torch.no_grad():
        for tensor in tensors:
            local = _own_shard(tensor)
            if local.layout == torch.strided and local.device.type != "meta" and not local.is_complex():
                precise = torch.float32 if local.device.type == "mps" else torch.float64
                sums.append(local.detach().sum(dtype=precise))
    return sums


def _own_shard(tensor: Any) -> Any:
    """Return this rank's shard of a DTensor, or of a parameter that DeepSpeed's stage 3 has emptied."""
    import torch.distributed as dist

    if hasattr(tensor, "to_local"):
        return tensor.to_local()
    shard = getattr(tensor, "ds_tensor", None)
    if shard is None or tensor.numel():
        return tensor
    # The last shards are padded with whatever is in memory, which may be NaN.
    start = dist.get_rank(tensor.ds_process_group) * shard.numel()
    return shard.flatten()[: max(0, tensor.ds_numel - start)]


_START_HOOKS = ("on_validation_model_eval", "on_validation_start", "on_validation_epoch_start")
# In the order in which Lightning calls them.
_END_HOOKS = ("on_validation_epoch_end", "on_validation_end", "on_validation_model_train")


class TrainedWeights:
    """Tells whether a validation has replaced the trained weights, and lets callbacks restore them.

    Args:
        namespace: Lightning's namespace.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._trained: Optional[List[Any]] = None
        self._validated: Optional[List[Any]] = None

    def record(self, pl_module: Any) -> None:
        """Record the weights before a validation, without synchronizing with the device."""
        self._trained, self._validated = _parameter_sums(pl_module), None

    def record_validated(self, pl_module: Any) -> None:
        """Record the weights at the first batch of the validation."""
        if self._validated is None:
            self._validated = _parameter_sums(pl_module)

    def reset(self) -> None:
        """Treat the model's current weights as the trained ones from now on."""
        self._trained = self._validated = None

    def are_in(self, pl_module: Any) -> bool:
        """Whether the model holds its trained weights, and not those that the validation put there.

        Restored weights may differ in their last bits, as those of schedule-free optimizers do.
        """
        if self._trained is None or self._validated is None:
            return True
        trained, validated = _finite_floats(self._trained), _finite_floats(self._validated)
        if trained == validated:
            return True
        now = _finite_floats(_parameter_sums(pl_module))
        return len(now) == len(trained) and _max_difference(now, trained) <= 0.01 * _max_difference(validated, trained)

    def restore(self, trainer: Trainer, pl_module: Any) -> bool:
        """Call the hooks that end a validation, one after another, until the model holds its trained weights.

        Only callbacks and models with a hook for the start of a validation are called, so that no other one sees
        metrics of a part of the data. Every rank must call it.

        Returns:
            Whether every rank has its trained weights. If not, the validation cannot continue either.
        """
        if all_true(trainer, self.are_in(pl_module)):
            return True
        for name, hook in list(_end_hooks(self.namespace, trainer, pl_module)):
            try:
                hook()
            except Exception as error:
                log.warning("%s failed in a validation that was stopped early (%s)", name, error)
            if all_true(trainer, self.are_in(pl_module)):
                return True
        return False


def _end_hooks(namespace: Namespace, trainer: Trainer, pl_module: Any) -> Iterator[Tuple[str, Callable[[], Any]]]:
    module = namespace.module()
    owners: List[Tuple[Any, Any, Tuple[Any, ...]]] = [
        *((callback, module.Callback, (trainer, pl_module)) for callback in callbacks_of(trainer)),
        (pl_module, module.LightningModule, ()),
    ]
    for name in _END_HOOKS:
        for owner, base, arguments in owners:
            if any(_overrides(owner, base, start) for start in _START_HOOKS) and _overrides(owner, base, name):
                yield f"{type(owner).__name__}.{name}", partial(getattr(owner, name), *arguments)


def _overrides(owner: Any, base: type, name: str) -> bool:
    if not hasattr(owner, name):
        return False
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


def _parameter_sums(pl_module: Any) -> List[Any]:
    return _tensor_sums(parameter for parameter in pl_module.parameters() if parameter.is_floating_point())


def _finite_floats(sums: Sequence[Any]) -> List[float]:
    numbers = [float(value) for value in sums]
    return [value if math.isfinite(value) else 0.0 for value in numbers]


def _max_difference(one: Sequence[float], other: Sequence[float]) -> float:
    # A callback that replaces modules may change the number of parameters.
    if len(one) != len(other):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, other)), default=0.0)
