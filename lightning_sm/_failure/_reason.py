"""``Reason``: why the job failed, as one frozen value and as the line that SageMaker shows of it."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from lightning_sm._failure._frames import QuotedTraceback, user_frames
from lightning_sm.errors import LightningSMError

__all__ = ["MOST", "Reason", "message_of", "printable"]

# SageMaker shows this much of the file: DescribeTrainingJob, FailureReason.
MOST = 1024

_MOST_MEMBERS = 5
# Colours and cursor movements of a terminal; and what no log shows, or shows as a line or direction of its own.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Reason:
    """Why the job failed. ``str(reason)`` has at most 1,024 characters: cause, rank and host, lines of user code, hint.

    Args:
        cause: What went wrong first, such as ``RuntimeError: mat1 and mat2 shapes cannot be multiplied``.
        rank: The global rank of the process in which it did.
        host: The host of that process.
        frames: The last lines of the user's code that the error went through, the innermost last.
        later: What the first error led to, where the program raised another one.
        hint: What to do about it.
        is_loss: Whether a process went away without an exception; its cause names rank and host.
    """

    cause: str
    rank: Optional[int] = None
    host: Optional[str] = None
    frames: Tuple[str, ...] = ()
    later: Optional[str] = None
    hint: Optional[str] = None
    is_loss: bool = False

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        rank: Optional[int] = None,
        host: Optional[str] = None,
        mask: Callable[[str], str] = str,
    ) -> "Reason":
        """Build the reason from an exception.

        Of chained exceptions the first in time is the cause. An error of ours explains what was raised before it, so
        it is the cause itself. A group of exceptions is followed by its members.

        Args:
            error: The exception that ended the program.
            rank: This process's global rank, where it is known.
            host: This host's name, where it is known.
            mask: What hides secrets in text.
        """
        chain = _chain(error)
        first = next((each for each in chain if isinstance(each, LightningSMError)), chain[-1])
        later = None if first is error else _line(mask(_head(error)))
        if isinstance(first, LightningSMError):
            cause = f"{type(first).__name__}: {first.problem}"
            hint = None if first.hint is None else _line(mask(first.hint))
            return cls(_line(mask(cause)), rank, host, later=later, hint=hint)
        inner = next(iter(_members(first)), first)
        frames = user_frames(inner.__traceback__, message_of(inner)) or user_frames(error.__traceback__)
        return cls(_line(mask(_head(first))), rank, host, tuple(_line(mask(frame)) for frame in frames), later)

    @classmethod
    def from_message(cls, message: Any) -> "Optional[Reason]":
        """Take what :meth:`as_message` made, also of another version of this package; ``None`` where it is no reason.

        Nothing of it is believed: whatever has the wrong type or is too long is left out.
        """
        known: Mapping[str, Any] = message if isinstance(message, dict) else {}
        texts = {name: _told(known.get(name)) for name in ("cause", "host", "later", "hint")}
        cause = texts.pop("cause")
        if not cause:
            return None
        frames = known.get("frames")
        lines = [_told(frame) for frame in (frames[:8] if isinstance(frames, list) else [])]
        rank = known.get("rank")
        is_rank = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 20
        return cls(
            cause,
            rank if is_rank else None,
            frames=tuple(line for line in lines if line),
            is_loss=known.get("is_loss") is True,
            **texts,
        )

    def as_message(self) -> Dict[str, Any]:
        """Return what can be sent to another process as JSON."""
        return asdict(self)

    @property
    def place(self) -> str:
        """Rank and host, as far as they are known."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        host = "" if self.host is None else f"on {self.host}"
        return " ".join(part for part in (rank, host) if part)

    def __str__(self) -> str:
        # What to do matters more than the end of a long quotation, and the cause more than how it was reached.
        hint = _cut(f" HINT: {self.hint}", MOST // 2) if self.hint else ""
        details = [] if self.is_loss or not self.place else [self.place]
        where = f" ({details[0]})" if details else ""
        cause = _cut(self.cause, MOST - len(hint) - len(where))
        for optional in self._by_worth():
            longer = f" ({'; '.join([*details, optional])})"
            if len(cause) + len(longer) + len(hint) <= MOST:
                details.append(optional)
                where = longer
        return f"{cause}{where}{hint}"

    def _by_worth(self) -> List[str]:
        """What may follow rank and host where there is room."""
        frames = [f"at {' > '.join(self.frames[start:])}" for start in range(len(self.frames))]
        # The longest that fits, down to the innermost line alone.
        fitting = next((each for each in frames if len(self.cause) + len(each) + 200 <= MOST), None)
        parts = [fitting or frames[-1]] if frames else []
        return [*parts, f"then {_cut(self.later, 300)}"] if self.later else parts


def _chain(error: BaseException) -> List[BaseException]:
    """The exception and those that were raised before it, the first in time last."""
    chain: List[BaseException] = []
    following: Optional[BaseException] = error
    while following is not None and all(following is not each for each in chain):
        chain.append(following)
        before = following.__cause__
        following = before if before is not None or following.__suppress_context__ else following.__context__
    return chain


def _members(error: BaseException) -> List[BaseException]:
    """What a group of exceptions holds, each by its first cause, groups in it resolved; empty for any other exception.

    The class is built in since Python 3.11; before, the package exceptiongroup has one of the same name.
    """
    members: List[BaseException] = []
    seen, waiting = {id(error)}, [error]
    while waiting:
        each = waiting.pop(0)
        if any(cls.__name__ == "BaseExceptionGroup" for cls in type(each).__mro__):
            firsts = [_chain(member)[-1] for member in getattr(each, "exceptions", ())]
            waiting[:0] = [first for first in firsts if id(first) not in seen]
            seen.update(map(id, firsts))
        elif each is not error:
            members.append(each)
    return members


def _head(error: BaseException) -> str:
    """Class and message; of a traceback that the message quotes, its end; of a group, the heads of its members."""
    message = message_of(error)
    quoted = QuotedTraceback.cause(message)
    if quoted is not None:
        return quoted
    head = f"{type(error).__name__}: {message}" if message else type(error).__name__
    members = _members(error)
    if not members:
        return head
    more = [f"and {len(members) - _MOST_MEMBERS} more"] if len(members) > _MOST_MEMBERS else []
    return f"{head}: {'; '.join([*map(_head, members[:_MOST_MEMBERS]), *more])}"


def message_of(error: BaseException) -> str:
    """Return what ``str(error)`` says, also where a class of somebody else cannot be asked."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its __str__ raised {type(problem).__name__})"


def printable(text: str) -> str:
    """Escape what cannot be written as UTF-8, or would change how a log is shown."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), _TERMINAL.sub("", text))


def _told(text: Any) -> Optional[str]:
    """What another process tells, if it is text."""
    return _line(text[:MOST])[:MOST] if isinstance(text, str) else None


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
