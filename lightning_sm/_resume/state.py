"""What a save holds beside Lightning's own state, so that a fit continues as if it had not been interrupted."""

from typing import Any, Dict, List, Mapping

from lightning_sm._lightning.collectives import gather_on_main
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.restart import SavePoint, iterated_loaders, loaders_of
from lightning_sm._lightning.results import (
    logged_values,
    metric_states,
    results_of,
    set_logged_values,
    set_metric_states,
)
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._resume.attributes import Attributes
from lightning_sm._resume.data import is_ordered, is_stateful, sampler_of
from lightning_sm._resume.data_values import get_sampler_state, set_sampler_state
from lightning_sm._resume.optimizers import small_parameters_beside_model
from lightning_sm._resume.random_state import get_process_state

__all__ = [
    "communication_states",
    "on_cpu",
    "rank_state",
    "restore_communication",
    "restore_logged",
    "restore_samplers",
    "stateful_loaders",
]


def rank_state(trainer: Trainer, point: SavePoint, attributes: Attributes) -> Dict[str, Any]:
    """Return what one rank needs: random states, the position in its data, what it has logged, and attributes."""
    within = point in (SavePoint.BATCH, SavePoint.VALIDATION)
    state: Dict[str, Any] = {
        "random": get_process_state(),
        "loaders": [_loader_state(*each) for each in zip(loaders_of(trainer), iterated_loaders(trainer))],
        "results": results_of(trainer) if within else [],
        "metric_states": metric_states(trainer.lightning_module),
        "logged": logged_values(trainer),
        "parameters": [] if trainer.is_global_zero else small_parameters_beside_model(trainer),
    }
    return {**on_cpu(state), "attributes": attributes.state(trainer)}


def communication_states(trainer: Trainer) -> List[Any]:
    """What each rank's ``SMDDPStrategy`` needs, such as errors of PowerSGD. Collective if its options need anything.

    They are on global rank 0 only, as each may be as large as the model.
    """
    communication = getattr(strategy_of(trainer), "communication", None)
    state = None if communication is None else communication.state()
    return [] if state is None else gather_on_main(trainer, on_cpu(state))


def restore_communication(trainer: Trainer, states: List[Any], *, is_same_world: bool) -> None:
    """Give the strategy of this rank what :func:`communication_states` has returned."""
    communication = getattr(strategy_of(trainer), "communication", None)
    if states and communication is not None:
        communication.load(states[trainer.global_rank] if is_same_world else states[0], is_same_world)


def on_cpu(value: Any) -> Any:
    """Return nested containers with their tensors in host memory, where any rank can read them."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda each: each.detach().cpu() if hasattr(each, "detach") else each, value)


def _loader_state(loader: Any, iterated: Any) -> Dict[str, Any]:
    sampler = sampler_of(loader)
    state = {"start": None, "now": get_sampler_state(loader)} if sampler is None else sampler.state()
    if is_stateful(loader):
        # One that is read from the beginning must not continue, too.
        state["stateful"] = loader.state_dict() if is_ordered(loader) else None
    return state if iterated is None else {**state, "read": iterated.start}


def restore_samplers(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Set what the order of a new epoch follows from."""
    for loader, saved in zip(loaders_of(trainer), state["loaders"]):
        set_sampler_state(loader, saved["now"])


def restore_logged(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Set the metrics that callbacks and schedulers see, and the states of the model's torchmetrics objects."""
    set_logged_values(trainer, state["logged"], strategy_of(trainer).root_device)
    set_metric_states(trainer.lightning_module, state["metric_states"])


def stateful_loaders(state: Mapping[str, Any]) -> List[Any]:
    """The states of loaders that save their own position, which Lightning loads for all of them or for none."""
    found = [loader["stateful"] for loader in state["loaders"] if "stateful" in loader]
    return [] if any(each is None for each in found) else found
