"""``FailureReason``: why a job failed, as one frozen value and as the text that SageMaker shows of it.

It is built from an exception: from its chain, the frames of the user's own code, and a traceback that its message
quotes. Also here is whether an exception only follows from the loss of another rank.
"""

import os
import re
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from types import FrameType, TracebackType
from typing import Callable, List, Optional, Tuple

from lightning_sm._failure.failure_file import MAX_LENGTH, escape_unprintable
from lightning_sm._installed import is_installed
from lightning_sm.errors import LightningSMError

__all__ = ["TORCH_PACKAGES", "FailureReason", "is_lost_peer_error", "package_of"]

# What a longer cause keeps where there is more to say.
_MAX_CAUSE = 768
_MAX_MEMBERS = 5

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_QUOTED_FRAME = re.compile(r'^[ \t]*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_TRACEBACK_HEADER = "Traceback (most recent call last):"
# Of a frame: class and message stand after the last one.
_INDENTED_LINE = re.compile(r"^ .*$", re.MULTILINE)

# Exception classes of torch since 2.0 and 2.2: torch/csrc/Exceptions.h.
_LOST_PEER_CLASSES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
# third_party/gloo/gloo/transport/tcp/pair.cc and buffer.cc, names that other libraries have, too; torch/csrc/
# distributed/c10d: ProcessGroupNCCL, ProcessGroupGloo, TCPStore, socket; ncclGetErrorString.
_LOST_PEER_MESSAGES = re.compile(
    r"third_party/gloo|gloo/transport|application timeout caused pair closure|connectfullmesh|monitoredbarrier|"
    r"nccl ?(?:error|comm|watchdog|system|remote|internal|unhandled)|remote process exited|unhandled system error|"
    r"watchdog caught collective|(?:send|recv)(?:bytes|value|vector)|tcpstore|client socket",
    re.IGNORECASE,
)
# Other libraries report their own connections in these words, so they count only where torch raised the error.
_CONNECTION_MESSAGES = re.compile(
    r"connection (?:closed by|reset by|refused)|broken pipe|socket ?timeout|timed out waiting \d+ ?ms|"
    r"timed out after \d+ ?ms|wait timeout|failed to recv",
    re.IGNORECASE,
)
# torch, and Lightning, which calls it.
TORCH_PACKAGES = frozenset({"torch", "lightning", "lightning_fabric", "pytorch_lightning"})


@dataclass(frozen=True)
class FailureReason:
    """Why the job failed.

    ``str(reason)`` has at most 1,024 characters: cause, rank and host, frames of the user's code, hint::

        >>> str(FailureReason("KeyError: 'x'", rank=1, host="algo-2", frames=("train.py:12 in step",)))
        "KeyError: 'x' (rank 1 on algo-2; at train.py:12 in step)"

    Args:
        cause: The first error, such as ``RuntimeError: mat1 and mat2 shapes cannot be multiplied``.
        rank: The global rank of the process in which it occurred.
        host: The host of that process.
        frames: The last frames of the user's code in the traceback, the innermost last.
        last_error: The error that left the program, where the first one led to another.
        hint: What to do about it.
        link: The address of a page that explains the error; it stands last and is never cut.
    """

    cause: str
    rank: Optional[int] = None
    host: Optional[str] = None
    frames: Tuple[str, ...] = ()
    last_error: Optional[str] = None
    hint: Optional[str] = None
    link: Optional[str] = None

    @classmethod
    def from_exception(
        cls,
        error: BaseException,
        *,
        rank: Optional[int] = None,
        host: Optional[str] = None,
        redact: Callable[[str], str] = str,
    ) -> "FailureReason":
        """Build the reason from an exception.

        Of chained exceptions the first one raised is the cause, except that a ``LightningSMError`` explains the
        exceptions before it and is the cause itself. A queue that is empty is no cause: a data loader waits so for its
        workers. The members of an exception group are appended to it.

        Args:
            error: The exception that ended the program.
            rank: This process's global rank, if known.
            host: This host's name, if known.
            redact: Removes secrets from text.
        """
        chain = [each for each in _exception_chain(error) if not isinstance(each, Empty)] or [error]
        first = next((each for each in chain if isinstance(each, LightningSMError)), chain[-1])
        last_error = None if first is error else _one_line(redact(_headline(error)))
        if isinstance(first, LightningSMError):
            cause = f"{type(first).__name__}: {first.problem}"
            hint = None if first.hint is None else _one_line(redact(first.hint))
            return cls(_one_line(redact(cause)), rank, host, last_error=last_error, hint=hint, link=first.link)
        inner = next(iter(_group_members(first)), first)
        frames = _user_frames(inner.__traceback__, _message_of(inner)) or _user_frames(error.__traceback__)
        cause = _one_line(redact(_headline(first)))
        return cls(cause, rank, host, tuple(_one_line(redact(frame)) for frame in frames), last_error)

    @property
    def location(self) -> str:
        """Rank and host, if known, such as ``rank 1 on algo-2``."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        host = "" if self.host is None else f"on {self.host}"
        return " ".join(part for part in (rank, host) if part)

    def __str__(self) -> str:
        # A long cause leaves a quarter to the rest: a quotation must push out neither the hint nor the innermost frame.
        advice, cause_length = self._advice(), min(len(self.cause), _MAX_CAUSE)
        details = [self.location] if self.location else []
        where = f" ({self.location})" if self.location else ""
        for optional in self._optional_details():
            longer = f" ({'; '.join([*details, optional])})"
            if cause_length + len(longer) + len(advice) <= MAX_LENGTH:
                details.append(optional)
                where = longer
        return f"{_cut_middle(self.cause, MAX_LENGTH - len(advice) - len(where))}{where}{advice}"

    def _advice(self) -> str:
        if not self.hint:
            return f" HINT: See {self.link}" if self.link else ""
        end = f" ({self.link})" if self.link else ""
        return _cut_middle(f" HINT: {self.hint}", MAX_LENGTH // 2 - len(end)) + end

    def _optional_details(self) -> List[str]:
        """What follows rank and host if there is room, the most useful first."""
        # The most frames that leave room, at least the innermost one.
        all_frames = [f"at {' > '.join(self.frames[start:])}" for start in range(len(self.frames))]
        frames = [each for each in all_frames if len(self.cause) + len(each) + 200 <= MAX_LENGTH] or all_frames[-1:]
        return frames[:1] + ([f"then {_cut_middle(self.last_error, 300)}"] if self.last_error else [])


def _message_of(error: BaseException) -> str:
    """Return ``str(error)``, or a note where the exception's ``__str__`` raises."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its __str__ raised {type(problem).__name__})"


def _user_frames(trace: Optional[TracebackType], message: str = "", limit: int = 4) -> Tuple[str, ...]:
    """Return the last frames of the user's code, the innermost last, each as ``train.py:12 in training_step``.

    Frames of the standard library, of installed packages and of this package are left out. If no frame remains, as in a
    project that is installed as a package, the innermost frame is returned.

    Args:
        trace: The exception's traceback.
        message: The exception's message, which may quote another process's traceback (a data loader's worker).
        limit: The maximum number of frames.
    """
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(trace)]
    frames += [(path, int(line), function) for path, line, function in _QUOTED_FRAME.findall(message)]
    shown = [frame for frame in frames if _is_user_code(frame[0])] or frames[-1:]
    return tuple(f"{_short_path(path)}:{line} in {function}" for path, line, function in shown[-limit:])


def _quoted_cause(message: str) -> Optional[str]:
    r"""Return class and message of the error in a traceback that ``message`` quotes, or ``None`` if there is none.

    Data loaders and process launchers raise such messages::

        >>> _quoted_cause("Original Traceback (most recent call last):\n  File 'data.py', line 3\nKeyError: 'x'")
        "KeyError: 'x'"
    """
    _, header, quoted = message.rpartition(_TRACEBACK_HEADER)
    cause = _INDENTED_LINE.split(quoted)[-1].strip()
    return cause if header and cause else None


def is_lost_peer_error(error: BaseException) -> bool:
    """Whether torch raised ``error`` because it lost another rank, timed out on one, or cannot reach the store.

    Connection errors of other libraries, such as clients of S3 and of databases, are not ``RuntimeError``, or were not
    raised by torch. An error of a data loader's worker, which torch raises again, quotes a traceback.
    """
    if type(error).__name__ in _LOST_PEER_CLASSES:
        # A port that this rank cannot listen on is no other rank's failure.
        return "failed to listen" not in str(error)
    if not isinstance(error, RuntimeError):
        return False
    message = _message_of(error)
    if _LOST_PEER_MESSAGES.search(message) is not None:
        return True
    # Python code of torch raised it, or called the native code that did.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_from_torch = bool(frames) and package_of(frames[-1]) in TORCH_PACKAGES and _quoted_cause(message) is None
    return is_from_torch and _CONNECTION_MESSAGES.search(message) is not None


def _exception_chain(error: BaseException) -> List[BaseException]:
    """The exception and those raised before it, the first one last."""
    chain: List[BaseException] = []
    following: Optional[BaseException] = error
    while following is not None and all(following is not each for each in chain):
        chain.append(following)
        before = following.__cause__
        following = before if before is not None or following.__suppress_context__ else following.__context__
    return chain


def _headline(error: BaseException) -> str:
    """Class and message; of a quoted traceback, its last lines; of a group, also those of its members."""
    message = _message_of(error)
    quoted = _quoted_cause(message)
    if quoted is not None:
        return quoted
    head = f"{type(error).__name__}: {message}" if message else type(error).__name__
    members = [_headline(member) for member in _group_members(error)]
    if not members:
        return head
    more = [f"and {len(members) - _MAX_MEMBERS} more"] if len(members) > _MAX_MEMBERS else []
    return f"{head}: {'; '.join([*members[:_MAX_MEMBERS], *more])}"


def _group_members(error: BaseException) -> List[BaseException]:
    """The first causes of the members of an exception group, nested groups flattened; empty for other exceptions.

    The class is built in since Python 3.11; before, the package exceptiongroup defines one of the same name.
    """
    if all(cls.__name__ != "BaseExceptionGroup" for cls in type(error).__mro__):
        return []
    firsts = (_exception_chain(member)[-1] for member in getattr(error, "exceptions", ()))
    return [member for first in firsts for member in _group_members(first) or [first]]


def package_of(frame: FrameType) -> str:
    """The package whose code runs in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_user_code(path: str) -> bool:
    # Generated code of torch, dataclasses and the import system has names such as "<frozen runpy>".
    if path.startswith("<"):
        return path == "<string>" and sys.argv[0] == "-c"
    return not (is_installed(path) or os.path.realpath(path).startswith(_PACKAGE_FOLDER + os.sep))


def _short_path(path: str) -> str:
    """Relative to the working directory, which is the source directory in a container; else the last two parts."""
    if path.startswith("<"):
        return path
    relative = os.pardir
    with suppress(FileNotFoundError):  # the working directory, if the program has deleted it
        relative = os.path.relpath(path)
    return relative if not relative.startswith(os.pardir) else os.path.join(*path.split(os.sep)[-2:])


def _one_line(text: str) -> str:
    return escape_unprintable(" ".join(text.split()))


def _cut_middle(text: str, length: int) -> str:
    """The beginning, which names the error, and the end, where libraries write what to do."""
    if len(text) <= length:
        return text
    end = (length - 3) // 2
    return f"{text[: length - 3 - end]} … {text[len(text) - end :]}"
