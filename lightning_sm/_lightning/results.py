"""What was logged in the current epoch: Lightning's accumulated values, and the states of torchmetrics' objects.

Lightning saves neither, so that the mean of a resumed epoch would be that of its second part.
"""

import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from lightning_sm._lightning.legacy import connector_of, strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer import Trainer

__all__ = [
    "MAX_STATE_BYTES",
    "logged_values",
    "metric_states",
    "results_of",
    "set_logged_values",
    "set_metric_states",
    "set_results",
]

#: Larger states, such as those of a metric that keeps all predictions, are not gathered at each save.
MAX_STATE_BYTES = 4 * 2**20

# Arguments of ``LightningModule.log``.
_LOG_ARGUMENTS = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")


_LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


def logged_values(trainer: Any) -> Dict[str, Dict[str, Any]]:
    """The metrics that callbacks, loggers and progress bars see, without the reduction that ``Trainer`` may do."""
    connector = connector_of(trainer, "logger")
    return {
        name: {key: value.detach() for key, value in getattr(connector, name).items() if hasattr(value, "detach")}
        for name in _LOGGED
    }


def set_logged_values(trainer: Any, saved: Mapping[str, Mapping[str, Any]], device: Any) -> None:
    """Set what :func:`logged_values` returned."""
    connector = connector_of(trainer, "logger")
    for name, values in saved.items():
        getattr(connector, name).update({key: value.to(device) for key, value in values.items()})


def results_of(trainer: Trainer) -> List[Dict[str, Any]]:
    """What this rank has logged in the current training epoch, from Lightning 2.5 on."""
    found = []
    for result in trainer.fit_loop.epoch_loop._results.values():
        if result.has_reset or result.meta.sync._group is not None:
            continue
        meta = result.meta
        sums = [name for name in ("value", "cumulated_batch_size") if result.is_tensor and hasattr(result, name)]
        found.append(
            {
                **{name: getattr(meta, name) for name in _LOG_ARGUMENTS},
                "fx": meta.fx,
                "name": meta.name,
                "reduce_fx": meta.reduce_fx.__name__,
                "sync_dist": bool(meta.sync.should),
                "rank_zero_only": bool(meta.sync.rank_zero_only),
                "sums": {name: _copy(getattr(result, name)) for name in sums},
                "on_last_step": _copy(result._forward_cache) if hasattr(result._forward_cache, "detach") else None,
            }
        )
    return found


def set_results(trainer: Any, saved: List[Dict[str, Any]]) -> Callable[[], None]:
    """Restore what :func:`results_of` returned, within an epoch, before its next batch.

    Returns:
        A function that undoes what this changes in the trainer, for the end of the epoch.
    """
    import torch

    module, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    metrics = dict(module.named_modules())
    earlier: Dict[str, Any] = {}
    # A search for a learning rate or a batch size has left its own, and on_train_start may log once more.
    results.clear()
    for entry in saved:
        arguments = {name: entry[name] for name in (*_LOG_ARGUMENTS, "reduce_fx", "rank_zero_only")}
        key = f"{entry['fx']}.{entry['name']}"
        value = torch.zeros((), device=module.device) if entry["sums"] else metrics.get(entry["metric_attribute"])
        if value is None:
            continue
        results.log(
            entry["fx"], entry["name"], value, **arguments, sync_dist_fn=strategy_of(trainer).reduce, batch_size=1
        )
        results[key].meta.sync.should = entry["sync_dist"]
        _set(results[key], entry, module.device)
        earlier[key] = entry

    def log_first(log: Callable[..., None], fx: str, name: str, *args: Any, **kwargs: Any) -> None:
        # The arguments of `log` may differ from those before the interruption.
        key = f"{fx}.{name}"
        entry = earlier.pop(key, None)
        if entry is not None:
            del results[key]
        log(fx, name, *args, **kwargs)
        if entry is not None and entry["sums"] and results[key].is_tensor:
            _add(results[key], entry)

    replaced = ReplacedMethod(results, "log", log_first)
    # Lightning takes the first batch after its start for the first batch of the epoch.
    trainer._logger_connector._first_loop_iter = False
    return replaced.undo


def _set(result: Any, entry: Mapping[str, Any], device: Any) -> None:
    for name, value in entry["sums"].items():
        setattr(result, name, value.to(device))
    cache = entry["on_last_step"]
    result._forward_cache = None if cache is None else cache.to(device)


def _add(result: Any, entry: Mapping[str, Any]) -> None:
    """Combine what was logged before the interruption with the first value after it."""
    if not result.meta.on_epoch:
        return
    for name, value in entry["sums"].items():
        now = getattr(result, name)
        extreme = result.meta.is_max_reduction or result.meta.is_min_reduction
        before = value.to(now.device)
        setattr(result, name, result.meta.reduce_fx(before, now) if extreme else before + now)


def metric_states(module: Any) -> Dict[str, Any]:
    """The states of a module's torchmetrics objects, by their names in it; those above 4 MiB are left out."""
    return {
        name: {
            "states": {state: _copy(value) for state, value in states.items()},
            "updates": int(getattr(metric, "_update_count", 1)),
        }
        for name, metric, states in _metrics(module)
        if _bytes(states) <= MAX_STATE_BYTES
    }


def _metrics(module: Any) -> Iterator[Tuple[str, Any, Dict[str, Any]]]:
    torchmetrics = sys.modules["torchmetrics"]
    leaders = {}
    for each in module.modules():
        if isinstance(each, torchmetrics.MetricCollection) and getattr(each, "_groups_checked", False):
            # Metrics of a compute group share their states, and only the first is up to date.
            for first, *others in each._groups.values():
                leaders.update({id(each._modules[other]): each._modules[first] for other in others})
    for name, metric in module.named_modules():
        if isinstance(metric, torchmetrics.Metric):
            leader = leaders.get(id(metric), metric)
            yield name, metric, {state: getattr(leader, state) for state in metric._defaults}


def set_metric_states(module: Any, saved: Mapping[str, Any]) -> None:
    """Restore what :func:`metric_states` returned."""
    for name, each in list(module.named_modules()):
        if isinstance(each, sys.modules["torchmetrics"].MetricTracker):
            # It has a copy of its metric for each call of increment().
            while any(f"{key}.".startswith(f"{name}.{len(each)}.") for key in saved):
                each.increment()
    for name, metric, states in _metrics(module):
        if name not in saved or saved[name]["states"].keys() != states.keys():
            continue
        for state, value in saved[name]["states"].items():
            moved = [item.to(metric.device) for item in value] if isinstance(value, list) else value.to(metric.device)
            setattr(metric, state, moved)
        metric._computed = None
        for count, value in (("_update_count", saved[name]["updates"]), ("_update_called", saved[name]["updates"] > 0)):
            if count in vars(metric):
                setattr(metric, count, value)


def _copy(value: Any) -> Any:
    # Tensors in a list are not modified in place.
    return [item.detach() for item in value] if isinstance(value, list) else value.detach().clone()


def _bytes(states: Mapping[str, Any]) -> int:
    tensors = (item for value in states.values() for item in (value if isinstance(value, list) else [value]))
    return sum(item.numel() * item.element_size() for item in tensors)
