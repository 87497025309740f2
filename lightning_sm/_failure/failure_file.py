"""Writes the failure reason where SageMaker reads it, ``/opt/ml/output/failure``, with secrets redacted.

The console and EventBridge events show the text of that file.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Mapping, Match, Optional, Pattern
from urllib.parse import quote

from lightning_sm._failure.reason import MAX_LENGTH, FailureReason, escape_unprintable
from lightning_sm._failure.secret_patterns import NAME, PATTERNS
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob

__all__ = [
    "REDACTED",
    "Redactor",
    "is_secret_name",
    "redact_patterns",
    "count_oom_kills",
    "may_restart",
    "will_be_restarted",
    "withdraw_failure",
    "with_oom_kills",
    "write_failure",
]

REDACTED = "***"

# Eight times what SageMaker shows. Longer texts would hold the GIL for too long while other ranks wait for this one.
_MAX_LENGTH = 8 * 1024
# Values of secrets are searched in the first 1 MiB of a text only.
_MAX_SEARCHED = 1024 * 1024
# Longer secrets are recognised by their beginning, so that a cut cannot hide them.
_MAX_CUT_SECRET = 256

# Replacing shorter values and common words would destroy the text and protect nothing.
_MIN_VALUE = 4
_COMMON_WORDS = frozenset({"true", "false", "none", "null", "auto"})


def is_secret_name(name: str) -> bool:
    """Whether the name of a hyperparameter or environment variable indicates a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("max_tokens")
    (True, False)
    """
    return re.search(NAME, name, re.IGNORECASE) is not None


class Redactor:
    """Replaces secrets in text by ``***``.

    Replaced are AWS keys and other tokens that have a known format, users and passwords in URLs, values next to a name
    that indicates a secret (token, secret, password, API key, credential), and every occurrence of the values of
    hyperparameters and environment variables that have such a name::

        >>> redact = Redactor(TrainingJob(), environ={"WANDB_API_KEY": "0123456789"})
        >>> redact("login failed for 0123456789 at postgres://me:pw@db/x")
        'login failed for *** at postgres://***@db/x'

    Args:
        job: The job whose hyperparameters are searched for secrets.
        environ: The environment variables to search instead of ``os.environ``.
    """

    def __init__(self, job: TrainingJob, environ: Optional[Mapping[str, str]] = None) -> None:
        variables = os.environ if environ is None else environ
        found = [
            *_secret_values(job.hyperparameters.values),
            *_secret_values(job.hyperparameters.reserved),
            *_secret_values(variables),
        ]
        self._values = sorted({spelling for value in found for spelling in _spellings(value)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the first 8,192 characters of ``text`` without secrets, or a little less of a longer text."""
        text = text[:_MAX_SEARCHED]
        for value in self._values:
            text = text.replace(value, REDACTED)
        redacted = redact_patterns(text[:_MAX_LENGTH])
        if len(text) <= _MAX_LENGTH:
            return redacted
        # The cut may have left a part of a secret that no pattern recognises.
        return redacted[: max(len(redacted) - _MAX_CUT_SECRET, redacted.rfind(REDACTED) + len(REDACTED))]


def redact_patterns(text: str) -> str:
    """Redact what matches a secret pattern, in time linear in the length of ``text``."""
    for pattern in PATTERNS:
        lowered = text.lower()
        if not pattern.keywords or any(keyword in lowered for keyword in pattern.keywords):
            text = _compiled(pattern.pattern).sub(_replacement(pattern.name), text)
    return text


@lru_cache(maxsize=None)
def _compiled(pattern: str) -> Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=None)
def _replacement(name: str) -> Callable[[Match[str]], str]:
    is_exception = _EXCEPTIONS.get(name)

    def replace(match: Match[str]) -> str:
        group = "secret" if "secret" in match.re.groupindex else 0
        if match[group].startswith(REDACTED) or (is_exception is not None and is_exception(match)):
            return match[0]
        start, whole_start = match.start(group), match.start()
        return f"{match[0][: start - whole_start]}{REDACTED}{match[0][match.end(group) - whole_start :]}"

    return replace


def _is_path(match: Match[str]) -> bool:
    """Random base64 has one slash in 64 characters on average."""
    return match[0].count("/") > 3 + len(match[0]) // 32


def _is_placeholder(match: Match[str]) -> bool:
    """Such as ``--token TOKEN`` in a usage message."""
    secret = match["secret"]
    return (
        secret.isupper()
        and secret.replace("_", "") in match[0].upper().replace("-", "").replace("_", "")[: -len(secret)]
    )


def _has_one_case(match: Match[str]) -> bool:
    return match[0].lower() == match[0] or match[0].upper() == match[0]


_KEY_CONTEXT = re.compile(r"(?i)wandb|w&b|api|key|token|log ?in|secret|credential")
_DIGEST_CONTEXT = re.compile(
    r"(?i)sha-?1|digest|commit|\brev|hash|check ?sum|snapshot|blob|\bgit|etag|\bHEAD\b|branch|merge|fingerprint|version"
)


def _is_digest(match: Match[str]) -> bool:
    before, after = match.string[max(0, match.start() - 48) : match.start()], match.string[match.end() :][:24]
    return _KEY_CONTEXT.search(before) is None and _DIGEST_CONTEXT.search(f"{before} {after}") is not None


# Texts that match a pattern and are not secrets.
_EXCEPTIONS: Dict[str, Callable[[Match[str]], bool]] = {
    "aws secret access key": _is_path,
    "long base64": _is_path,
    "lines of base64": lambda match: _has_one_case(match) or _is_path(match),
    "option": _is_placeholder,
    "wandb or other key of 40 hexadecimal digits": _is_digest,
}


def _secret_values(values: Any, is_secret: bool = False) -> Iterator[str]:
    """Every text and number below a name that indicates a secret."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _secret_values(value, is_secret or is_secret_name(str(name)))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _secret_values(value, is_secret)
    elif is_secret and isinstance(values, (str, int, float)) and not isinstance(values, bool):
        text = str(values).strip()
        if len(text) >= _MIN_VALUE and text.lower() not in _COMMON_WORDS:
            yield text


def _spellings(value: str) -> List[str]:
    """A value as a message may contain it: unchanged, on one line, or quoted by Python, for JSON or for a URL."""
    return [
        value,
        " ".join(value.split()),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        quote(value, safe="", errors="replace"),
    ]


# cgroup v2, then v1: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events; cgroup-v1/memory.html,
# memory.oom_control. In a container these are the files of the container's own cgroup.
_CGROUP_FILES = ("memory.events", os.path.join("memory", "memory.oom_control"))
_OOM_KILL = re.compile(r"^oom_kill\s+(\d+)\s*$", re.MULTILINE)


def write_failure(job: TrainingJob, reason: str) -> None:
    """Write ``reason`` to the job's failure file unless the file exists. Outside a container do nothing.

    Nor is anything written by workers that torchrun starts again (:func:`will_be_restarted`): the job goes on.

    Secrets are redacted. SageMaker's training toolkit does not overwrite the file. Its own reason would be the log from
    the first line on that contains the name of any exception, and would be empty for an argument error:
    ``sagemaker_training/files.py``, ``write_failure_file``, and ``process.py``, ``watch``.

    Args:
        job: The job.
        reason: The reason, cause first; its first 1,024 characters are written.
    """
    if job.failure_file is None or will_be_restarted():
        return
    text = escape_unprintable(Redactor(job)(reason))[:MAX_LENGTH]
    try:
        os.makedirs(os.path.dirname(job.failure_file), exist_ok=True)
        # Unbuffered, in one write: a reader never sees a part of the text while ranks are being killed.
        with open(job.failure_file, "xb", buffering=0) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        if not os.path.isfile(job.failure_file):
            log.warning("The failure reason could not be written to %s: %s", job.failure_file, error)


def will_be_restarted() -> bool:
    """Whether torchrun starts its workers again after a failure of this one, so that the job has not failed.

    It reads ``TORCHELASTIC_RESTART_COUNT`` and ``TORCHELASTIC_MAX_RESTARTS``, which torchrun sets for its workers;
    SageMaker's own torchrun has no ``--max-restarts``, and then both are 0.
    """
    return _count("TORCHELASTIC_RESTART_COUNT") < _count("TORCHELASTIC_MAX_RESTARTS")


def may_restart() -> bool:
    """Whether torchrun was told to start failed workers again; the same on every host (``--max-restarts``)."""
    return _count("TORCHELASTIC_MAX_RESTARTS") > 0


def _count(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


def withdraw_failure(job: TrainingJob, prefix: str) -> None:
    """Remove the failure file if its text starts with ``prefix``: the event reported there was not a failure.

    Args:
        job: The job.
        prefix: The beginning of the reason to remove; a file with any other text is kept.
    """
    if job.failure_file is None:
        return
    with suppress(OSError):
        with open(job.failure_file, encoding="utf-8") as file:
            matches = file.read().startswith((prefix, Redactor(job)(prefix)))
        if matches:
            os.unlink(job.failure_file)


def count_oom_kills(cgroup_root: str = "/sys/fs/cgroup") -> Optional[int]:
    """Return how many processes of this container the kernel's OOM killer has killed, or ``None`` if unknown.

    Args:
        cgroup_root: Where the cgroup file system is mounted.
    """
    for name in _CGROUP_FILES:
        try:
            with open(os.path.join(cgroup_root, name), encoding="ascii", errors="replace") as file:
                found = _OOM_KILL.search(file.read())
        except OSError:
            continue
        if found is not None:
            return int(found.group(1))
    return None


def with_oom_kills(reason: FailureReason, host: Optional[str]) -> FailureReason:
    """Add the container's count of OOM kills to the loss of a rank that ran on this host.

    Args:
        reason: The reason; any other than the loss of a rank on ``host`` is returned unchanged.
        host: This host's name.
    """
    kills = count_oom_kills() if reason.is_loss and reason.host == host else None
    if not kills:
        return reason
    return replace(reason, cause=f"{reason.cause}; OOM kills in this container (cgroup oom_kill): {kills}")
