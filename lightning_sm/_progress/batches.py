"""``BatchSize``: how many samples a batch holds, without a walk through the whole batch."""

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

__all__ = ["BatchSize"]

# A batch is searched for its first tensor this deep, among this many entries of a collection.
_DEPTH = 4
_ENTRIES = 8


@dataclass
class BatchSize:
    """Reads the number of samples of each batch.

    It is the length of the first tensor in the batch, as in Lightning's ``extract_batch_size``, unless the first batch
    shows that this is not what the data loader calls a batch: a list of images, for example, whose first tensor has as
    many rows as an image has channels. Then each batch counts as many samples as the data loader says.

    Args:
        expected: The batch size of the data loader; ``None`` if it has none.

    Example::

        >>> import torch
        >>> sizes = BatchSize(expected=8)
        >>> sizes.read((torch.zeros(8, 3), torch.zeros(8))), sizes.read((torch.zeros(5, 3), torch.zeros(5)))
        (8, 5)
        >>> images = [torch.zeros(3, 32, 32)] * 8
        >>> BatchSize(expected=8).read(images)
        8
    """

    expected: Optional[int] = None
    _reads_tensors: Optional[bool] = None

    @classmethod
    def of(cls, loaders: Sequence[Any]) -> "BatchSize":
        """Return the one for batches of these data loaders: one, or several whose batches come together."""
        if len(loaders) != 1:
            return cls()
        loader, size = loaders[0], None
        try:
            size = getattr(loader, "batch_size", None)
            if size is None:
                size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
            if not isinstance(size, int) or size < 1:
                return cls()
            return cls(max(min(size, len(loader.sampler)), 1))
        except Exception:  # without a length, or anything else that a user's loader or sampler does
            return cls(size if isinstance(size, int) and size > 0 else None)

    def read(self, batch: Any) -> Optional[int]:
        """Return the number of samples of a batch; ``None`` if it is unknown.

        It never raises: a batch may be an object of the user's whose ``shape`` is a method or raises.
        """
        if self._reads_tensors is False:
            return self.expected
        try:
            found = _first_length(batch, _DEPTH)
        except Exception:
            found = None
        if self._reads_tensors is None:
            self._reads_tensors = self.expected is None or found == self.expected
            if not self._reads_tensors:
                return self.expected
        return found


def _first_length(batch: Any, depth: int) -> Optional[int]:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth == 0 or isinstance(batch, (str, bytes)):
        return None
    if isinstance(batch, (list, tuple)):
        entries: Any = batch
    elif isinstance(batch, Mapping):
        entries = batch.values()
    else:
        # Data classes, and batches of graphs, whose first tensor may be anything: a count of their own is the best.
        graphs = getattr(batch, "num_graphs", None)
        return graphs if isinstance(graphs, int) else None
    for number, entry in enumerate(entries):
        if number == _ENTRIES:
            break
        found = _first_length(entry, depth - 1)
        if found is not None:
            return found
    return None
