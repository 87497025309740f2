"""``WrappingIOMixin``: a ``CheckpointIO`` around another, which does what this one leaves alone.

``AtomicCheckpointIO``: a checkpoint stands under its name whole, or not at all.
"""

import os
import re
import secrets
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, Set, cast

from lightning_sm._atomic_file import PatientFile, put_in_place, remove, removed_on_error
from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["WrappingIOMixin", "save_options", "AtomicCheckpointIOMixin", "atomic_checkpoint_io"]

if TYPE_CHECKING:
    from pytorch_lightning.plugins import CheckpointIO as _Base
else:
    _Base = object


class WrappingIOMixin(_Base):
    """Hold another ``CheckpointIO``, and be asked for whatever that one has.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    namespace: Namespace

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load what is there."""
        return self.inner.load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove what is there."""
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        """Tear down the other one; Lightning before 1.6 has nothing to tear down."""
        if hasattr(self.inner, "teardown"):
            self.inner.teardown()

    def __getattr__(self, name: str) -> Any:
        # A project's own CheckpointIO may have more than Lightning's, and be asked for it.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def save_options(storage_options: Any) -> Dict[str, Any]:
    """What is handed on of ``storage_options``: older ones do not take it."""
    return {} if storage_options is None else {"storage_options": storage_options}


# Two containers give their processes the same numbers, so that the number alone would not tell whose file it is.
_THIS_RUN = secrets.token_hex(4)
_PARTIAL = re.compile(r"\..+\.partial-\d+-[0-9a-f]+$")


class AtomicCheckpointIOMixin(WrappingIOMixin):
    """Let another ``CheckpointIO`` write to a hidden name in the same directory, and rename what is there in the end.

    Neither SageMaker's uploader nor a process that looks for a checkpoint sees a file that is not whole, and a failed
    or killed save leaves the older file as it was. Lightning's own saving does not do that: older versions write to the
    final name, and newer ones with ``fsspec`` to ``/tmp``, from where it is *copied* to another mount.

    Remote paths are left to the other one.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._swept: Set[str] = set()

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Save to ``path``.

        Raises:
            CheckpointError: The file could not be written. What was there before still is.
        """
        options = save_options(storage_options)
        target = os.fspath(path)
        if "://" in target:
            self.inner.save_checkpoint(checkpoint, path, **options)
            return
        directory, name = os.path.split(os.path.abspath(target))
        partial = os.path.join(directory, f".{name[:100]}.partial-{os.getpid()}-{_THIS_RUN}")
        with _explained(target), removed_on_error(partial):
            os.makedirs(directory, exist_ok=True)
            self._sweep(directory)
            self._write(checkpoint, partial, options)
            put_in_place(partial, target)

    def _write(self, checkpoint: Any, partial: str, options: Any) -> None:
        if type(self.inner) is not self.namespace.module("plugins").TorchCheckpointIO or options:
            self.inner.save_checkpoint(checkpoint, partial, **options)
            return
        import torch

        try:
            # Lightning's own makes two more copies of the checkpoint in memory and one in /tmp on its way to this file.
            with open(partial, "wb") as file:
                patient = PatientFile(file)
                torch.save(checkpoint, cast(IO[bytes], patient))  # it is what torch asks of a file
                patient.raise_error()
        except AttributeError:  # a hyperparameter that cannot be pickled, which older versions leave out
            self.inner.save_checkpoint(checkpoint, partial)

    def _sweep(self, directory: str) -> None:
        """Remove what earlier runs that were killed left here, once."""
        if directory in self._swept:
            return
        self._swept.add(directory)
        for name in os.listdir(directory):
            if _PARTIAL.match(name) and not name.endswith(_THIS_RUN):
                log.info("Removing %s, which an interrupted run left behind", os.path.join(directory, name))
                remove(os.path.join(directory, name))


def atomic_checkpoint_io(namespace: Namespace) -> type:
    """Return ``AtomicCheckpointIO`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace, "AtomicCheckpointIO", f"{__name__}:{AtomicCheckpointIOMixin.__name__}", "plugins:CheckpointIO"
    )


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch has no other exception for what it could not write
        raise CheckpointError(
            f"The checkpoint {path} could not be saved ({type(error).__name__}: {error}). An older one is still there.",
            hint="Check the room on the disk and its mount: a larger volume_size, or fewer checkpoints kept.",
        ) from error
