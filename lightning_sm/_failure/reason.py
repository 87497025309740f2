"""``FailureReason``: why a job failed, as one frozen value and as the text that SageMaker shows of it.

Also here is what is read from an exception to build one: its chain, the frames of the user's own code, a traceback that
its message quotes, and whether it only follows from the loss of another rank.
"""

import os
import re
import socket
import sys
import sysconfig
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import LightningSMError

__all__ = [
    "MAX_LENGTH",
    "TORCH_PACKAGES",
    "FailureReason",
    "escape_unprintable",
    "find_peer_host",
    "is_lost_peer_error",
    "message_of",
    "quoted_cause",
    "user_frames",
]

# SageMaker shows this many characters of the failure file: DescribeTrainingJob, FailureReason.
MAX_LENGTH = 1024

# What a longer cause keeps where there is more to say.
_MAX_CAUSE = 768
_MAX_MEMBERS = 5
_MAX_LINK = 200
_MAX_RANKS = 1 << 20
# Terminal colours and cursor movements; and characters that a log does not show, or that change its lines or direction.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STDLIB_FOLDERS = tuple({os.path.realpath(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")})
_QUOTED_FRAME = re.compile(r'^[ \t]*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_TRACEBACK_HEADER = "Traceback (most recent call last):"

# Exception classes of torch since 2.0 and 2.2: torch/csrc/Exceptions.h.
_LOST_PEER_CLASSES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
# gloo/transport/tcp/pair.cc and buffer.cc; torch/csrc/distributed/c10d: ProcessGroupNCCL, ProcessGroupGloo, TCPStore,
# socket; ncclGetErrorString.
_LOST_PEER_MESSAGES = re.compile(
    r"gloo/|(?:pair|buffer)\.cc|application timeout caused pair closure|connectfullmesh|monitoredbarrier|"
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
_ADDRESS = re.compile(r"\[?((?:\d{1,3}\.){3}\d{1,3}|[0-9a-f]*:[0-9a-f:]+:[0-9a-f]*)\]?(?::\d+|<\d+>)", re.IGNORECASE)


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
        is_loss: Whether a process exited without an exception; ``cause`` then names rank and host.
        link: The address of a page that explains the error; it stands last and is never cut.
    """

    cause: str
    rank: Optional[int] = None
    host: Optional[str] = None
    frames: Tuple[str, ...] = ()
    last_error: Optional[str] = None
    hint: Optional[str] = None
    is_loss: bool = False
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
        exceptions before it and is the cause itself. The members of an exception group are appended to it.

        Args:
            error: The exception that ended the program.
            rank: This process's global rank, if known.
            host: This host's name, if known.
            redact: Removes secrets from text.
        """
        chain = _exception_chain(error)
        first = next((each for each in chain if isinstance(each, LightningSMError)), chain[-1])
        last_error = None if first is error else _one_line(redact(_headline(error)))
        if isinstance(first, LightningSMError):
            cause = f"{type(first).__name__}: {first.problem}"
            hint = None if first.hint is None else _one_line(redact(first.hint))
            return cls(_cut_cause(redact(cause)), rank, host, last_error=last_error, hint=hint, link=first.link)
        inner = next(iter(_group_members(first)), first)
        frames = user_frames(inner.__traceback__, message_of(inner)) or user_frames(error.__traceback__)
        cause = _cut_cause(redact(_headline(first)))
        return cls(cause, rank, host, tuple(_one_line(redact(frame)) for frame in frames), last_error)

    @classmethod
    def from_message(cls, message: Any) -> "Optional[FailureReason]":
        """Validate what :meth:`to_message` of another process made; return ``None`` if it is not a reason.

        Fields that are unknown, have the wrong type or are too long are dropped or cut.
        """
        known: Mapping[str, Any] = message if isinstance(message, dict) else {}
        texts = {name: _validated_text(known.get(name)) for name in ("cause", "host", "last_error", "hint", "link")}
        cause = texts.pop("cause")
        if not cause:
            return None
        frames = known.get("frames")
        lines = [_validated_text(frame) for frame in (frames[:8] if isinstance(frames, list) else [])]
        rank = known.get("rank")
        is_rank = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MAX_RANKS
        return cls(
            cause,
            rank if is_rank else None,
            frames=tuple(line for line in lines if line),
            is_loss=known.get("is_loss") is True,
            **texts,
        )

    def to_message(self) -> Dict[str, Any]:
        """Return a dict that can be sent to another process as JSON."""
        return asdict(self)

    @property
    def location(self) -> str:
        """Rank and host, if known, such as ``rank 1 on algo-2``."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        host = "" if self.host is None else f"on {self.host}"
        return " ".join(part for part in (rank, host) if part)

    def __str__(self) -> str:
        # A long cause leaves a quarter to the rest: a quotation must push out neither the hint nor the innermost frame.
        hint = self._advice()
        details = [] if self.is_loss or not self.location else [self.location]
        where = f" ({details[0]})" if details else ""
        for optional in self._optional_details():
            longer = f" ({'; '.join([*details, optional])})"
            if min(len(self.cause), _MAX_CAUSE) + len(longer) + len(hint) <= MAX_LENGTH:
                details.append(optional)
                where = longer
        return f"{_cut_middle(self.cause, MAX_LENGTH - len(hint) - len(where))}{where}{hint}"

    def _advice(self) -> str:
        link = _truncate(self.link or "", _MAX_LINK)
        if not self.hint:
            return f" HINT: See {link}" if link else ""
        end = f" ({link})" if link else ""
        return _truncate(f" HINT: {self.hint}", MAX_LENGTH // 2 - len(end)) + end

    def _optional_details(self) -> List[str]:
        """What follows rank and host if there is room, the most useful first."""
        frames = [f"at {' > '.join(self.frames[start:])}" for start in range(len(self.frames))]
        # The most frames that fit, at least the innermost one.
        fitting = next((each for each in frames if len(self.cause) + len(each) + 200 <= MAX_LENGTH), None)
        parts = [fitting or frames[-1]] if frames else []
        return [*parts, f"then {_truncate(self.last_error, 300)}"] if self.last_error else parts


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, or a note where the exception's ``__str__`` raises."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its __str__ raised {type(problem).__name__})"


def user_frames(trace: Optional[TracebackType], message: str = "", limit: int = 4) -> Tuple[str, ...]:
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


def quoted_cause(message: str) -> Optional[str]:
    r"""Return class and message of the error in a traceback that ``message`` quotes, or ``None`` if there is none.

    Data loaders and process launchers raise such messages::

        >>> quoted_cause("Original Traceback (most recent call last):\n  File 'data.py', line 3\nKeyError: 'x'")
        "KeyError: 'x'"
    """
    _, header, quoted = message.rpartition(_TRACEBACK_HEADER)
    lines: Sequence[str] = quoted.strip("\n").splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(" "):
            return "\n".join(lines[index + 1 :]).strip() or None
    return None if not header else "\n".join(lines).strip() or None


def is_lost_peer_error(error: BaseException) -> bool:
    """Whether torch raised ``error`` because it lost another rank, timed out on one, or cannot reach the store.

    Connection errors of other libraries, such as clients of S3 and of databases, are not ``RuntimeError``, or were not
    raised by torch. An error of a data loader's worker, which torch raises again, quotes a traceback.
    """
    if type(error).__name__ in _LOST_PEER_CLASSES:
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = message_of(error)
    if _LOST_PEER_MESSAGES.search(message) is not None:
        return True
    is_from_torch = _raising_package(error) in TORCH_PACKAGES and quoted_cause(message) is None
    return is_from_torch and _CONNECTION_MESSAGES.search(message) is not None


def find_peer_host(message: str, hosts: Sequence[str]) -> Optional[str]:
    """Return the first of ``hosts`` that has an IP address which ``message`` names, or ``None``."""
    addresses = set(_ADDRESS.findall(message))
    if not addresses:
        return None
    return next((host for host in hosts if addresses & set(_ip_addresses(host))), None)


def escape_unprintable(text: str) -> str:
    """Escape characters that cannot be encoded as UTF-8 or that change how a log is displayed."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), _TERMINAL.sub("", text))


def _exception_chain(error: BaseException) -> List[BaseException]:
    """The exception and those raised before it, the first one last."""
    chain: List[BaseException] = []
    following: Optional[BaseException] = error
    while following is not None and all(following is not each for each in chain):
        chain.append(following)
        before = following.__cause__
        following = before if before is not None or following.__suppress_context__ else following.__context__
    return chain


def _group_members(error: BaseException) -> List[BaseException]:
    """The first causes of the members of an exception group, nested groups flattened; empty for other exceptions.

    The class is built in since Python 3.11; before, the package exceptiongroup defines one of the same name.
    """
    members: List[BaseException] = []
    seen, waiting = {id(error)}, [error]
    while waiting:
        each = waiting.pop(0)
        if any(cls.__name__ == "BaseExceptionGroup" for cls in type(each).__mro__):
            firsts = [_exception_chain(member)[-1] for member in getattr(each, "exceptions", ())]
            waiting[:0] = [first for first in firsts if id(first) not in seen]
            seen.update(map(id, firsts))
        elif each is not error:
            members.append(each)
    return members


def _headline(error: BaseException) -> str:
    """Class and message; of a quoted traceback, its last lines; of a group, also those of its members."""
    message = message_of(error)
    quoted = quoted_cause(message)
    if quoted is not None:
        return quoted
    head = f"{type(error).__name__}: {message}" if message else type(error).__name__
    members = _group_members(error)
    if not members:
        return head
    more = [f"and {len(members) - _MAX_MEMBERS} more"] if len(members) > _MAX_MEMBERS else []
    return f"{head}: {'; '.join([*map(_headline, members[:_MAX_MEMBERS]), *more])}"


def _raising_package(error: BaseException) -> str:
    """The package whose Python code raised ``error``, or called the native code that did."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name, trace = str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_next
    return name.partition(".")[0]


def _is_user_code(path: str) -> bool:
    # Generated code of torch, dataclasses and the import system has names such as "<frozen runpy>".
    if path.startswith("<"):
        return path == "<string>" and sys.argv[0] == "-c"
    real = os.path.realpath(path)
    if any(f"{os.sep}{folder}{os.sep}" in real for folder in _LIBRARY_FOLDERS):
        return False
    return not real.startswith((_PACKAGE_FOLDER + os.sep, *(folder + os.sep for folder in _STDLIB_FOLDERS)))


def _short_path(path: str) -> str:
    """Relative to the working directory, which is the source directory in a container; else the last two parts."""
    if path.startswith("<"):
        return path
    relative = os.path.relpath(path)
    return relative if not relative.startswith(os.pardir) else os.path.join(*path.split(os.sep)[-2:])


def _ip_addresses(host: str) -> Iterator[str]:
    try:
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(address[0])
    except (OSError, UnicodeError):
        return


def _validated_text(text: Any) -> Optional[str]:
    return _one_line(text[:MAX_LENGTH])[:MAX_LENGTH] if isinstance(text, str) else None


def _one_line(text: str) -> str:
    return escape_unprintable(" ".join(text.split()))


def _cut_cause(text: str) -> str:
    """As much of a cause as other ranks are sent."""
    return _cut_middle(_one_line(text), MAX_LENGTH)


def _cut_middle(text: str, length: int) -> str:
    """The beginning, which names the error, and the end, where libraries write what to do."""
    if len(text) <= length:
        return text
    end = (length - 3) // 2
    return f"{text[: length - 3 - end]} … {text[len(text) - end :]}"


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
