"""The optimizers and schedulers of a save, where a program replaces or extends them while it trains."""

import sys
from inspect import signature
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import set_up_optimizers_again
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.results import MAX_STATE_BYTES
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log

__all__ = [
    "Description",
    "describe_optimizers",
    "make_optimizers",
    "parameters_beside_model",
    "schedulers_of",
    "set_parameters_beside_model",
    "small_parameters_beside_model",
]

#: What :func:`describe_optimizers` returns.
Description = Mapping[str, Sequence[Mapping[str, Any]]]


class _NotMadeError(Exception):
    """Only the program can make an optimizer or scheduler."""


def schedulers_of(trainer: Trainer) -> List[Any]:
    """The learning rate schedulers; those within others are no part of the list."""
    return [config.scheduler for config in getattr(trainer, "lr_scheduler_configs", ())]


def describe_optimizers(trainer: Trainer) -> Description:
    """Return the optimizers' classes, options and names of parameters, and the schedulers' classes and settings.

    Names are empty for other parameters than the model's.
    """
    names = {id(parameter): name for name, parameter in trainer.lightning_module.named_parameters()}
    optimizers = [
        {
            "class": _class_of(each),
            "options": _options(each),
            "groups": [[names.get(id(parameter), "") for parameter in group["params"]] for group in each.param_groups],
        }
        for each in trainer.optimizers
    ]
    schedulers = []
    for config in getattr(trainer, "lr_scheduler_configs", ()):
        settings = dict(vars(config))
        scheduler = settings.pop("scheduler")
        state, own = scheduler.state_dict(), dict(getattr(scheduler, "__dict__", {}))
        optimizer = own.pop("optimizer", None)
        schedulers.append(
            {
                "class": _class_of(scheduler),
                "optimizer": next((at for at, each in enumerate(trainer.optimizers) if each is optimizer), None),
                # Functions and schedulers within others are no part of the state.
                "is whole": isinstance(state, dict) and all(state.get(key, state) is own[key] for key in own),
                "settings": settings,
            }
        )
    return {"optimizers": optimizers, "schedulers": schedulers}


def make_optimizers(
    namespace: Namespace, trainer: Trainer, saved: Description, configured: Description
) -> Optional[str]:
    """Make the optimizers and schedulers that a save was made with, before Lightning restores their states.

    Those that the program has assigned later are made anew where ``configure_optimizers`` still returns what it
    returned in the run that saved: else it is the program that has changed.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer, whose strategy has set up the optimizers that the program begins with.
        saved: What :func:`describe_optimizers` returned for the save.
        configured: The same when the fit of the save began.

    Returns:
        How they differ from those of the save.
    """
    is_same_program = _kinds(describe_optimizers(trainer)) == _kinds(configured)
    if not is_sharded(trainer):
        if _kinds(describe_optimizers(trainer)) != _kinds(saved):
            set_up_optimizers_again(trainer)
        if is_same_program and _kinds(describe_optimizers(trainer)) != _kinds(saved):
            _assign(namespace, trainer, saved)
        parameters = dict(trainer.lightning_module.named_parameters())
        for optimizer, each in zip(trainer.optimizers, saved["optimizers"]):
            for names in each["groups"][len(optimizer.param_groups) :]:
                if parameters.keys() >= set(names):
                    optimizer.add_param_group({"params": [parameters[name] for name in names]})
    then, now = _kinds(saved), _kinds(describe_optimizers(trainer))
    if now == then:
        return None
    return f"it is of {', '.join(then)}, and configure_optimizers returns {', '.join(now)}"


def parameters_beside_model(trainer: Trainer) -> List[Dict[str, Any]]:
    """The parameters that optimizers train and that are not the model's, such as coefficients of an equation.

    With the tensors of their optimizer's state: no strategy averages their gradients, so that each rank has its own.
    """
    return [{**tensors, "": parameter} for parameter, tensors in _beside_model(trainer)]


def small_parameters_beside_model(trainer: Trainer) -> List[Dict[str, Any]]:
    """The same of a rank but global rank 0; nothing where they are large: then those of that rank are restored."""
    found = parameters_beside_model(trainer)
    size = sum(tensor.numel() * tensor.element_size() for each in found for tensor in each.values())
    return found if size <= MAX_STATE_BYTES else []


def set_parameters_beside_model(trainer: Trainer, values: Iterable[Mapping[str, Any]]) -> None:
    """Set what :func:`parameters_beside_model` returned, after Lightning has restored the state of global rank 0."""
    for (parameter, tensors), saved in zip(_beside_model(trainer), values):
        for name, tensor in {**tensors, "": parameter}.items():
            tensor.detach().copy_(saved.get(name, tensor))


def _beside_model(trainer: Trainer) -> Iterator[Tuple[Any, Dict[str, Any]]]:
    if is_sharded(trainer):  # whose optimizers have parameters of their own
        return
    of_model = set(map(id, trainer.lightning_module.parameters()))
    for optimizer in trainer.optimizers:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if id(parameter) not in of_model:
                state = optimizer.state.get(parameter, {})
                yield parameter, {key: each for key, each in state.items() if isinstance(each, torch.Tensor)}


def _assign(namespace: Namespace, trainer: Trainer, saved: Description) -> None:
    """Make what the program has assigned while it trained; nothing where one of it cannot be made."""
    before = list(trainer.optimizers)
    parameters = dict(trainer.lightning_module.named_parameters())
    # A scheduler of no optimizer has stayed with one that was replaced, maybe by one of the same class.
    pairs = zip(saved["schedulers"], describe_optimizers(trainer)["schedulers"])
    replaced = {present["optimizer"] for each, present in pairs if each["optimizer"] is None}
    kept = {(index, _class_of(each)): each for index, each in enumerate(before) if index not in replaced}
    try:
        trainer.optimizers = [
            kept.get((index, each["class"])) or _make_optimizer(each, parameters)
            for index, each in enumerate(saved["optimizers"])
        ]
        schedules = zip(describe_optimizers(trainer)["schedulers"], getattr(trainer, "lr_scheduler_configs", ()))
        present = {(index, _kind(each)): config for index, (each, config) in enumerate(schedules)}
        made = [
            present.get((index, _kind(each))) or _make_schedule(namespace, trainer, each)
            for index, each in enumerate(saved["schedulers"])
        ]
    except _NotMadeError:
        trainer.optimizers = before
        return
    if present or made:
        strategy_of(trainer).lr_scheduler_configs = made
    if trainer.is_global_zero:
        log.info("Continuing with what the program had assigned since it began: %s", ", ".join(_kinds(saved)))


def _make_optimizer(saved: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
    if not all(name in parameters for group in saved["groups"] for name in group):
        raise _NotMadeError
    groups = [{"params": [parameters[name] for name in group]} for group in saved["groups"]]
    return _find_class(saved)(groups, **saved["options"])


def _make_schedule(namespace: Namespace, trainer: Trainer, saved: Mapping[str, Any]) -> Any:
    if not saved["is whole"] or saved["optimizer"] is None:
        raise _NotMadeError
    cls = _find_class(saved)
    # As if it were unpickled: Lightning loads its state next.
    scheduler = cls.__new__(cls)
    scheduler.optimizer = trainer.optimizers[saved["optimizer"]]
    return namespace.module("utilities.types").LRSchedulerConfig(scheduler, **saved["settings"])


def _find_class(saved: Mapping[str, Any]) -> Any:
    """The class of an optimizer or scheduler, if it is the same by its name."""
    module, name = saved["class"]
    cls = getattr(sys.modules.get(module), name, None)
    if cls is None:
        raise _NotMadeError
    return cls


def _options(optimizer: Any) -> Mapping[str, Any]:
    """What an optimizer's class was given, or takes by default; of DeepSpeed's nothing is known."""
    arguments = signature(type(optimizer)).parameters
    return {name: value for name, value in getattr(optimizer, "defaults", {}).items() if name in arguments}


def _class_of(value: Any) -> Tuple[str, str]:
    return type(value).__module__, type(value).__qualname__


def _kinds(description: Description) -> List[str]:
    """The classes, by which states fit or do not, and of which optimizers the schedulers are."""
    return [each["class"][1] for each in description["optimizers"]] + [
        _kind(each) for each in description["schedulers"]
    ]


def _kind(scheduler: Mapping[str, Any]) -> str:
    at = scheduler["optimizer"]
    return f"{scheduler['class'][1]} of {'another optimizer' if at is None else f'optimizer {at}'}"
