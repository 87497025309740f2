"""``StandIn``: what a fit iterates in the place of a sampler or a loader while it trains."""

from typing import Any, Iterator

__all__ = ["StandIn", "iterated_by", "original"]


class StandIn:
    """Is iterated as one object, and is the sampler or loader in all else: attributes, class, what copies of it are.

    A program changes a sampler through it, such as the ``batch_size`` of the next epoch.

    Args:
        iterated: What is iterated. Its ``inner`` is the sampler or loader.
    """

    __slots__ = ("_lightning_sm",)

    def __init__(self, iterated: Any) -> None:
        object.__setattr__(self, "_lightning_sm", iterated)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._lightning_sm)

    def __len__(self) -> int:
        return len(self._lightning_sm.inner)

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> Any:
        return type(self._lightning_sm.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lightning_sm.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._lightning_sm.inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._lightning_sm.inner, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lightning_sm.inner.__reduce_ex__(protocol)


def iterated_by(value: Any) -> Any:
    """Return what is iterated in the place of a sampler or loader; ``None`` if the value is no :class:`StandIn`."""
    return value._lightning_sm if type(value) is StandIn else None


def original(value: Any) -> Any:
    """Return the sampler or loader in whose place a :class:`StandIn` is, or another value itself."""
    return value._lightning_sm.inner if type(value) is StandIn else value
