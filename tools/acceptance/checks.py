"""Compares what was seen of a job with what was expected. Nothing is read or sent here."""

import math
import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from tools.acceptance.jobs import Expected
from tools.acceptance.project.regression import loss_of, trained
from tools.acceptance.seen import Rank, Seen, SeenTraining

__all__ = ["ASPECTS", "problems_of"]

# That of config.yaml.
_LR = 0.05
# Weights in single precision, added up in another order on each device.
_TOLERANCE = 1e-4


def problems_of(expected: Expected, seen: Seen) -> Dict[str, Optional[str]]:
    """Return what is wrong, by aspect; ``None`` where nothing is."""
    found: Dict[str, Optional[str]] = {}
    for aspect, check in ASPECTS.items():
        texts = [(each.name, check(expected, each)) for each in seen.trainings]
        found[aspect] = "; ".join(f"{name}: {text}" for name, text in texts if text) or None
    if len(seen.trainings) != expected.trainings:
        found["status"] = f"there are {len(seen.trainings)} training jobs instead of {expected.trainings}"
    elif expected.trainings > 1:
        best = min(seen.trainings, key=lambda each: each.metrics.get("val_loss", math.inf))
        if seen.best != best.name:
            found["metrics"] = (
                f"the best training job is said to be {seen.best}, and {best.name} has the lowest val_loss"
            )
    return found


def _status(expected: Expected, seen: SeenTraining) -> Optional[str]:
    return None if seen.status == expected.status else f"{seen.status} instead of {expected.status}"


def _failure_reason(expected: Expected, seen: SeenTraining) -> Optional[str]:
    if expected.failure is None:
        return f"it is {seen.failure_reason!r}" if seen.failure_reason else None
    return None if expected.failure in seen.failure_reason else f"it is {seen.failure_reason!r}"


def _ranks(expected: Expected, seen: SeenTraining) -> Optional[str]:
    ranks = seen.ranks
    if not ranks:
        return "no rank has said what it is"
    processes = expected.processes or max(1, ranks[0].gpus)
    size = expected.hosts * processes
    if [each.rank for each in ranks] != list(range(size)) or {each.world_size for each in ranks} != {size}:
        return f"ranks and sizes are {[(each.rank, each.world_size) for each in ranks]} in a world of {size}"
    by_host: Dict[str, List[int]] = {}
    for each in ranks:
        by_host.setdefault(each.host, []).append(each.local_rank)
    if len(by_host) != expected.hosts or any(sorted(each) != list(range(processes)) for each in by_host.values()):
        return f"local ranks are {by_host}"
    if size > 1:
        backend = expected.backend or ("nccl" if ranks[0].gpus else "gloo")
        if {each.backend for each in ranks} != {backend}:
            return f"the backend is {ranks[0].backend} instead of {backend}"
    return _equal_weights(expected, ranks, _lr(seen))


def _equal_weights(expected: Expected, ranks: Sequence[Rank], lr: float) -> Optional[str]:
    """Each rank has the weights that plain gradient descent gives."""
    steps = {each.step for each in ranks}
    if len(steps) > 1 or 0 in steps or expected.steps not in (None, *steps):
        return f"the ranks made {sorted(steps)} steps instead of {expected.steps or 'the same number'}"
    for each in ranks:
        if not _close(each.weights, trained(each.step, lr)):
            return f"rank {each.rank} has the weights {each.weights} and not {trained(each.step, lr)}"
    return None


def _log(expected: Expected, seen: SeenTraining) -> Optional[str]:
    if len(seen.hosts) != expected.hosts:
        return f"lines are from {', '.join(seen.hosts) or 'no host'} and not from {expected.hosts}"
    return None if any("metrics at step" in line for line in seen.log) else "no line has the metrics"


def _metrics(expected: Expected, seen: SeenTraining) -> Optional[str]:
    value = seen.metrics.get("val_loss", math.nan)
    # A stopped job validated some steps before its end.
    right = math.isfinite(value)
    if expected.steps is not None:
        right = math.isclose(value, loss_of(trained(expected.steps, _lr(seen))), abs_tol=_TOLERANCE)
    return None if right else f"SageMaker read {dict(seen.metrics)} from the log"


def _checkpoints(expected: Expected, seen: SeenTraining) -> Optional[str]:
    if not expected.checkpoints:
        return f"there are {', '.join(seen.checkpoints)}" if seen.checkpoints else None
    records = [re.search(r"/fit-0/step-(\d+)[\d-]*\.json$", name) for name in seen.checkpoints]
    saved = [int(match[1]) for match in records if match]
    steps = [rank.step for rank in seen.ranks]
    return None if saved and steps and max(saved) == steps[0] else f"the last of {saved} is not step {steps[:1]}"


def _model(expected: Expected, seen: SeenTraining) -> Optional[str]:
    # SageMaker uploads no model of a job that failed.
    if expected.status == "Failed":
        return None
    ranks = seen.ranks
    if seen.model is None:
        return "there is no model.pt in model.tar.gz"
    if not ranks:
        return "no rank has said how many steps it made"
    right = trained(ranks[0].step, _lr(seen))
    return None if _close(seen.model, right) else f"its weights are {seen.model} and not {right}"


def _lr(seen: SeenTraining) -> float:
    return _LR if seen.lr is None else seen.lr


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, abs_tol=_TOLERANCE) for a, b in zip(one, other))


_Check = Callable[[Expected, SeenTraining], Optional[str]]
#: What is compared, by the heading of its column.
ASPECTS: Mapping[str, _Check] = {
    "status": _status,
    "ranks": _ranks,
    "log": _log,
    "metrics": _metrics,
    "checkpoints": _checkpoints,
    "model": _model,
    "failure reason": _failure_reason,
}
