"""The command line: ``python -m lightning_sm.cli fit --config FILE``, and the class behind it.

A project's ``train.py`` for SageMaker is complete with two lines::

    from lightning_sm.cli import main
    main()
"""

import atexit
import gc
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence

from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning import Namespace, choose_namespace, namespaced_class, resolve_class
from lightning_sm._lightning.compat import cli_base_path

if TYPE_CHECKING:
    from lightning_sm._cli import SageMakerCLIMixin as SageMakerCLI

__all__ = ["SageMakerCLI", "main", "sagemaker_cli_class"]

_MIXIN = "lightning_sm._cli:SageMakerCLIMixin"


def sagemaker_cli_class(namespace: Namespace) -> type:
    """Return ``SageMakerCLI`` for one of Lightning's namespaces."""
    return namespaced_class(namespace, "SageMakerCLI", _MIXIN, cli_base_path(namespace))


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run a Lightning project from its config: ``fit``, ``validate``, ``test`` or ``predict``.

    Any ``LightningModule`` and ``LightningDataModule`` is named by its class path. The model decides on the namespace.

    Args:
        args: The words of the command line instead of ``sys.argv[1:]``.

    Raises:
        LightningSMError: See :class:`SageMakerCLI`.
    """
    from lightning_sm._config.classes import find_model_class, named_settings

    words: List[str] = list(sys.argv[1:] if args is None else args)
    # The working directory is where a project's modules are; scripts elsewhere and console scripts do not look there.
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.insert(0, "")
    job = read_job()
    with failure_reported(job), _no_collections():
        namespace = choose_namespace(find_model_class(named_settings(words, job)))
    if args is not None:
        sys.argv = [sys.argv[0], *words]
    cli: Any = sagemaker_cli_class(namespace)
    cli()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage while torch and Lightning are imported, and leave what they made alone from then on.

    It stays to the end, and the first collection after it would look through all of it: half a second of the three and
    a half that a short program takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        # Bindings in C++ (nanobind) complain at the exit about what was not collected.
        atexit.register(gc.unfreeze)
        if was_enabled:
            gc.enable()


def __getattr__(name: str) -> Any:
    if name == "SageMakerCLI":
        return resolve_class(name, _MIXIN, sagemaker_cli_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
