"""Registers strategies, cluster environment and rank with each Lightning when it is imported."""

import functools
from contextlib import suppress
from typing import Any

from lightning_sm._lightning.import_hook import add_import_hook, check_before_import, explain_failed_import
from lightning_sm._lightning.namespaces import FABRICS, NAMESPACES, Namespace, mark_unsupported, set_rank_zero_rank
from lightning_sm._logging import log
from lightning_sm.errors import LightningSMError

__all__ = ["register_on_import"]


def register_on_import() -> None:
    """Register with each Lightning when it is imported, or now if it has been."""
    # Python executes a package before a module in it.
    for package in ("lightning", "pytorch_lightning", "lightning_fabric"):
        before = functools.partial(_before_import, package)
        add_import_hook(package, lambda: None, before=before, explain=explain_failed_import)
    for namespace in (*NAMESPACES, *FABRICS):
        add_import_hook(namespace.name, functools.partial(_try, namespace))


def _try(namespace: Namespace) -> None:
    """Register; if that fails, as with an unknown newer Lightning, log it instead of failing the user's import.

    Using one of our classes with that Lightning raises the error.
    """
    try:
        _register(namespace)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        mark_unsupported(namespace, reason)
        log.warning("lightning_sm does not support this release of %s and is inactive (%s).", namespace.name, reason)


def _before_import(package: str) -> None:
    _watch_failures()
    check_before_import(package)


def _watch_failures() -> None:
    """Share failures between ranks from now on: a script may fail in its model before it calls this package."""
    from lightning_sm._failure import read_job

    # A malformed job must not fail the import of Lightning.
    with suppress(Exception):
        read_job()


def _register(namespace: Namespace) -> None:
    from lightning_sm._distributed.environment import SageMakerEnvironment
    from lightning_sm._distributed.registry import register_accelerators, register_strategies
    from lightning_sm._lightning.launchers import end_with_spawned
    from lightning_sm._lightning.legacy import add_names_of_environment
    from lightning_sm._lightning.strategies import check_single_device_environment

    _watch_failures()
    namespace.module("plugins.environments").ClusterEnvironment.register(SageMakerEnvironment)
    register_strategies(namespace)
    if namespace in NAMESPACES:
        add_names_of_environment(namespace, SageMakerEnvironment)
        register_accelerators(namespace)
        check_single_device_environment(namespace, _check_single_device)
        end_with_spawned(namespace)
    _set_rank()


@functools.lru_cache(maxsize=None)
def _warn_once(problem: str) -> None:
    log.warning("The topology of this job is not readable yet: %s", problem)


def _set_rank() -> None:
    from lightning_sm._sagemaker.topology import Topology

    try:
        topology = Topology.resolve()
    except LightningSMError as error:
        # It must not fail the import of Lightning. Creating an environment or a strategy raises it.
        _warn_once(str(error))
        return
    rank = topology.global_rank
    if rank is not None or topology.node_rank:
        set_rank_zero_rank(topology.node_rank if rank is None else rank)


def _check_single_device(environment: Any) -> None:
    """Raise if a single device would train alone in a larger world; only warn if the environment is not ours."""
    from lightning_sm._distributed.environment import SageMakerEnvironment
    from lightning_sm._sagemaker.topology import Topology

    if isinstance(environment, SageMakerEnvironment):
        environment.validate_settings(1, 1)
        environment.log_summary()
        return
    try:
        if SageMakerEnvironment.detect():
            topology = Topology.resolve()
            topology.check_world(1, 1)
            SageMakerEnvironment(topology).log_summary()
    except LightningSMError as error:
        log.warning("This process trains alone: %s", error)
