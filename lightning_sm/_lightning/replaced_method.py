"""``ReplacedMethod``: a method of one object of Lightning's that is replaced for a while."""

from typing import Any, Callable, List

__all__ = ["ReplacedMethod", "UndoList", "listen"]


class ReplacedMethod:
    """A method of one object that is replaced by an instance attribute; a copy of that object gets the original.

    Args:
        owner: The object.
        name: The name of the method.
        function: Called instead, with the original method before the arguments.
        once: Whether the first call restores the method, before the function is called.
    """

    def __init__(self, owner: Any, name: str, function: Callable[..., Any], *, once: bool = False) -> None:
        self.owner, self.name, self.function, self.once = owner, name, function, once
        self.before = vars(owner).get(name)
        self.original = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.once:
            self.undo()
        return self.function(self.original, *args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)

    def undo(self) -> None:
        """Restore the method, unless another program has replaced it in the meantime."""
        if vars(self.owner).get(self.name) is not self:
            return
        if self.before is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class UndoList(List[Callable[[], Any]]):
    """What detaches an object from its trainer. A copy of both, made within a fit, is not attached."""

    def run(self) -> None:
        """Call each once."""
        while self:
            self.pop(0)()

    def __reduce__(self) -> Any:
        return UndoList, ()


def listen(
    owner: Any, name: str, function: Callable[[], None], *, first: bool = False, once: bool = False
) -> Callable[[], None]:
    """Call a function with each call of a method of one object.

    Args:
        owner: The object.
        name: The name of the method.
        function: The function.
        first: Whether it is called before the method; otherwise after it.
        once: Whether it is called with the next call only.

    Returns:
        A function that undoes it.

    Example::

        >>> class Loop:
        ...     def run(self):
        ...         print("run")
        >>> loop = Loop()
        >>> undo = listen(loop, "run", lambda: print("before"), first=True)
        >>> loop.run()
        before
        run
        >>> undo()
        >>> vars(loop)
        {}
    """

    def before(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        function()
        return original(*args, **kwargs)

    def after(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        function()
        return result

    return ReplacedMethod(owner, name, before if first else after, once=once).undo
