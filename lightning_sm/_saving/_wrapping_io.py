"""``WrappingIOMixin``: a ``CheckpointIO`` around another, which does what this one leaves alone."""

from typing import TYPE_CHECKING, Any, Dict

from lightning_sm._lightning import Namespace

if TYPE_CHECKING:
    from pytorch_lightning.plugins import CheckpointIO as _Base
else:
    _Base = object

__all__ = ["WrappingIOMixin", "save_options"]


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
