"""A program without changed lines: ``auto`` completes each ``Trainer`` and ``Fabric``, ``protect`` their training.

``lightning_sm_entry`` calls both in programs that do not import this package.
"""

import multiprocessing
import os
from functools import partial
from typing import Any, Mapping

from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning import FABRICS, NAMESPACES, Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.trainer import callbacks_of, is_fast_dev_run
from lightning_sm._lightning.wrapped_method import (
    fabric_of,
    named_arguments,
    reorder_callbacks,
    set_by_variables,
    trainer_of,
    wrap_method,
)
from lightning_sm._logging import log
from lightning_sm._sagemaker.topology import Topology
from lightning_sm._settings.given import RunContext, as_list
from lightning_sm._settings.options import options_of
from lightning_sm._settings.redirect import LOGGER, redirect
from lightning_sm._settings.routed import Routing
from lightning_sm._trainer_defaults import fabric_settings, trainer_settings
from lightning_sm.callbacks.job_callbacks import own_callbacks, upload_callbacks
from lightning_sm.callbacks.world_check import WorldCheckMixin
from lightning_sm.errors import TopologyError
from lightning_sm_entry import is_helper

__all__ = ["auto", "complete_all", "protect"]

_VARIABLE = "LIGHTNING_SM_AUTO"
_LINE = "import lightning_sm; lightning_sm.auto()"
# The attribute of a Trainer with the callbacks of the job that it was made with.
_OWN = "_lightning_sm_callbacks"
# The options of auto(); None before its first call.
_options: Any = None
_is_protected = False
# Whether this program has made a Trainer for more than one process.
_has_world = False


def auto(**sagemaker: Any) -> None:
    """Give each ``Trainer`` and ``Fabric`` of this program what the job determines, from now on. In a job only.

    A ``Trainer`` gets what :func:`~lightning_sm.trainer_settings` returns for its arguments, also one that Hydra,
    ``LightningCLI`` or a library constructs: number of processes, strategy, directories, loggers, and the callbacks
    that resume, save, report and export, also if the program replaces ``trainer.callbacks``. A ``Fabric`` gets the
    number of processes, the cluster environment and the directories of its loggers. What the program sets wins, as
    there. What was constructed before the call stays as it is. Left alone are a ``Trainer(devices=1, num_nodes=1)``
    that follows one for several processes, as rank 0 makes it for a test, and processes that a rank starts for
    something else.

    Environment variables:

    ``LIGHTNING_SM_AUTO``
      ``0`` switches it off. Set by the user.

    The other variables and files are those of :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology`.

    Args:
        **sagemaker: What the ``sagemaker`` group of the CLI takes, such as ``save_every="5m"``.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's variables contradict each other.
        OptionError: There is no such option.

    Example::

        >>> import lightning_sm
        >>> lightning_sm.auto(save_every="5m")
    """
    complete_all("lightning_sm.auto()", sagemaker)


def complete_all(why: str, sagemaker: Mapping[str, Any]) -> None:
    """Do what ``auto()`` does, also for a program that does not call it.

    Args:
        why: What asks for it, for the log.
        sagemaker: The options.
    """
    global _options
    job = read_job()
    with failure_reported(job):
        options_of(sagemaker)
        topology = Topology.resolve(job=job)
    if not job.in_container or os.environ.get(_VARIABLE) == "0":
        return
    # A program with the line trains, whatever has started it.
    if is_helper(guesses=False):
        # Workers of data loaders may run the main program once more.
        if multiprocessing.parent_process() is None:
            log.info("%s leaves this process alone, which a rank started for something else.", why)
        return
    if _options is None and topology.is_rank_zero:
        log.info(
            "lightning_sm gives each Trainer and Fabric the job's world, directories and callbacks, because of %s. "
            "%s=0 in the job's environment switches it off.",
            why,
            _VARIABLE,
        )
    _options = dict(sagemaker)
    for namespace in NAMESPACES:
        wrap_method(trainer_of(namespace), "__init__", _construct_trainer)
        for method in ("fit", "validate", "test", "predict"):
            wrap_method(trainer_of(namespace), method, _start_trainer)
    for namespace in FABRICS:
        wrap_method(fabric_of(namespace), "__init__", _construct_fabric)


def _construct(complete: Any, parameter: str, constructor: Any, made: Any, *args: Any, **kwargs: Any) -> None:
    global _has_world
    cls = type(made)
    given = named_arguments(partial(constructor, made), args, kwargs)
    known = {**set_by_variables(cls, given), **given}
    # As rank 0 makes it for a test.
    is_for_one = _has_world and all(str(known.get(name)) == "1" for name in ("devices", "num_nodes"))
    if is_for_one or _has_own_callbacks(as_list(given.get("callbacks"))):
        constructor(made, *args, **kwargs)
    else:
        constructor(made, **complete(**{parameter: cls}, sagemaker=_options, **given))
    _has_world = _has_world or made.world_size > 1


def _construct_trainer(constructor: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    _construct(trainer_settings, "trainer_class", constructor, trainer, *args, **kwargs)
    setattr(trainer, _OWN, [each for each in callbacks_of(trainer) if type(each).__module__ == "lightning_sm"])


def _start_trainer(method: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Give a ``Trainer`` whose callbacks the program has replaced those of the job again."""
    callbacks = callbacks_of(trainer)
    if not _has_own_callbacks(callbacks):
        reorder_callbacks(trainer, [*callbacks, *vars(trainer).get(_OWN, ())])
    return method(trainer, *args, **kwargs)


_construct_fabric = partial(_construct, fabric_settings, "fabric_class")


def _has_own_callbacks(callbacks: Any) -> bool:
    """Whether SageMakerCLI or trainer_settings has completed the arguments, or this has been done already."""
    return any(isinstance(callback, WorldCheckMixin) for callback in callbacks)


def protect(name: str) -> None:
    """Compare the worlds when a class of one of Lightning's namespaces starts to train; add a job's callbacks to a fit.

    Args:
        name: ``lightning.pytorch``, ``pytorch_lightning``, ``lightning.fabric`` or ``lightning_fabric``.
    """
    global _is_protected
    job = read_job()
    with failure_reported(job):
        topology = Topology.resolve(job=job)
    if _options is not None:
        return
    if not _is_protected and topology.is_rank_zero:
        log.info(
            "lightning_sm is installed in this job: it compares worlds before training, and each fit resumes, saves, "
            "reports and exports. %s=1 in the job's environment (torch 2.5 and newer) or the first line %r also sets "
            "world, strategy and directories; %s=0 switches it off.",
            _VARIABLE,
            _LINE,
            _VARIABLE,
        )
    _is_protected = True
    namespace = Namespace(name)
    if namespace in FABRICS:
        for method in ("launch", "setup", "setup_module"):
            wrap_method(fabric_of(namespace), method, _start_fabric)
    else:
        wrap_method(trainer_of(namespace), "fit", _fit)


def _start_fabric(method: Any, fabric: Any, *args: Any, **kwargs: Any) -> Any:
    _compare(fabric.strategy, fabric.world_size)
    return method(fabric, *args, **kwargs)


def _fit(fit: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    if not _has_own_callbacks(callbacks_of(trainer)) and _compare(strategy_of(trainer), trainer.world_size):
        _adopt(trainer)
    return fit(trainer, *args, **kwargs)


def _compare(strategy: Any, world_size: int) -> bool:
    """Compare the world of a strategy with the job's; returns whether it is that.

    Raises:
        TopologyError: They differ, and the program has not trained in the job's world before.
    """
    global _has_world
    job = read_job()
    topology, num_nodes = Topology.resolve(job=job), getattr(strategy, "num_nodes", 1)
    if _has_world and world_size == num_nodes == 1:
        return False
    environment = getattr(strategy, "cluster_environment", None)
    with failure_reported(job):
        topology.check_hosts()
        try:
            topology.check_world(world_size, num_nodes)
            if environment is not None and environment.node_rank() != topology.node_rank:
                topology.refuse(f"The Trainer takes this host for node {environment.node_rank()}")
        except TopologyError as error:
            hint = f"Make this the first line of the script: {_LINE}, or set {_VARIABLE}=1 in the job's environment."
            raise TopologyError(error.problem, hint=hint) from None
    _has_world = _has_world or world_size > 1
    return True


def _adopt(trainer: Any) -> None:
    """Give a ``Trainer`` that is about to fit the callbacks of the job, and its loggers the job's directories."""
    job = read_job()
    namespace = next(each for each in NAMESPACES if each.owns(type(trainer)))
    context = RunContext(job, Topology.resolve(job=job), namespace)
    routing = Routing(tuple(redirect(trainer.loggers, LOGGER, context)))
    if context.topology.is_rank_zero:
        for line in routing.lines:
            log.info("%s", line)
    callbacks = callbacks_of(trainer)
    arguments = {
        "enable_checkpointing": bool(trainer.checkpoint_callbacks),
        "enable_model_summary": False,  # it has been added, or was not wanted
        "fast_dev_run": is_fast_dev_run(trainer),
    }
    with failure_reported(job):
        own = [*upload_callbacks(routing.uploads, context), *own_callbacks(arguments, callbacks, context)]
    reorder_callbacks(trainer, [*callbacks, *own])
