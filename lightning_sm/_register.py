"""What we tell a Lightning as soon as it is loaded."""

import functools
from contextlib import suppress
from typing import Any, Callable

from lightning_sm._lightning.import_hook import (
    ImportHook,
    add_import_hook,
    check_before_import,
    explain_failed_import,
    log_if_unverified,
)
from lightning_sm._lightning.namespaces import NAMESPACES, Namespace, mark_unsupported, set_rank_zero_rank
from lightning_sm._logging import log
from lightning_sm.errors import LightningSMError

__all__ = ["register_on_import"]

# Lightning's Fabric, which can be used without its Trainer, under both names.
_FABRICS = (Namespace("lightning.fabric"), Namespace("lightning_fabric"))


def register_on_import() -> None:
    """Register our strategies, environment and rank with each Lightning, once it is imported or if it is already."""
    for namespace in NAMESPACES:
        around = ImportHook(
            before=functools.partial(_prepare, namespace),
            after=functools.partial(_attempt, _connect, namespace),
            explain=explain_failed_import,
        )
        add_import_hook(namespace.name, around)
    for namespace in _FABRICS:
        after = functools.partial(_attempt, _connect_fabric, namespace)
        add_import_hook(namespace.name, ImportHook(lambda: None, after, explain_failed_import))


def _attempt(connect: Callable[[Namespace], None], namespace: Namespace) -> None:
    """Connect, but never fail the import of a Lightning that is newer or other than those we know.

    Whoever uses one of our classes with it gets the error.
    """
    try:
        connect(namespace)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        mark_unsupported(namespace, reason)
        log.warning("lightning_sm does not support this release of %s and is inactive (%s).", namespace.name, reason)


def _prepare(namespace: Namespace) -> None:
    _watch_job()
    check_before_import(namespace)


def _watch_job() -> None:
    """Share failures from here on: a script may build its model, and fail, before it calls anything of ours."""
    from lightning_sm._failure import is_started_by_rank, report_uncaught, watch_failures
    from lightning_sm._sagemaker.job import TrainingJob
    from lightning_sm._sagemaker.topology import Topology

    # Importing Lightning must not fail for it.
    with suppress(Exception):
        job = TrainingJob.resolve()
        topology = Topology.resolve(job=job)
        if job.in_container and not is_started_by_rank(topology):
            report_uncaught(job)
            watch_failures(job, topology)


def _connect(namespace: Namespace) -> None:
    from lightning_sm._distributed.environment import SageMakerEnvironment
    from lightning_sm._distributed.smddp import register_strategies
    from lightning_sm._lightning.compat_strategies import (
        add_legacy_environment_methods,
        check_single_device_environment,
    )

    _watch_job()
    log_if_unverified(namespace)
    environments = namespace.module("plugins.environments")
    environments.ClusterEnvironment.register(SageMakerEnvironment)
    add_legacy_environment_methods(namespace, SageMakerEnvironment)
    register_strategies(namespace)
    check_single_device_environment(namespace, _check_single_device)
    _tell_rank()


def _connect_fabric(namespace: Namespace) -> None:
    from lightning_sm._distributed.environment import SageMakerEnvironment

    namespace.module("plugins.environments").ClusterEnvironment.register(SageMakerEnvironment)
    _tell_rank()


@functools.lru_cache(maxsize=None)
def _warn_once(problem: str) -> None:
    log.warning("The topology of this job cannot be read yet: %s", problem)


def _tell_rank() -> None:
    from lightning_sm._sagemaker.topology import Topology

    try:
        topology = Topology.resolve()
    except LightningSMError as error:
        # Importing Lightning must not fail for it; whoever makes an environment or a strategy gets the error whole.
        _warn_once(str(error))
        return
    rank = topology.global_rank
    if rank is not None or topology.node_rank:
        set_rank_zero_rank(topology.node_rank if rank is None else rank)


def _check_single_device(environment: Any) -> None:
    """Refuse to train alone where the environment is ours and the job has a larger world; else say it in a line."""
    from lightning_sm._distributed.environment import SageMakerEnvironment
    from lightning_sm._sagemaker.topology import Topology

    if isinstance(environment, SageMakerEnvironment):
        environment.validate_settings(1, 1)
        return
    try:
        if SageMakerEnvironment.detect():
            Topology.resolve().check_world(1, 1)
    except LightningSMError as error:
        log.warning("This process trains alone: %s", error)
