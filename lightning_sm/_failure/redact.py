"""``Redactor``: replaces secrets in text, by their values, by their format, and by the name beside them."""

import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Match, Optional
from urllib.parse import quote

from lightning_sm._failure.secret_patterns import NAME, PATTERNS
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["REDACTED", "Redactor", "is_secret_name", "redact_patterns"]

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
    for name, pattern in PATTERNS.items():
        text = re.sub(pattern, _replacement(name), text)
    return text


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
    option = match[0][: -len(secret)].upper().replace("-", "").replace("_", "")
    return secret.isupper() and secret.replace("_", "") in option


_KEY_CONTEXT = re.compile(r"(?i)wandb|w&b|api|key|token|log ?in|secret|credential")
_DIGEST_CONTEXT = re.compile(
    r"(?i)sha-?1|digest|commit|\brev|hash|check ?sum|snapshot|blob|\bgit|etag|\bHEAD\b|branch|merge|fingerprint|version"
)


def _is_digest(match: Match[str]) -> bool:
    """A commit has the format of a key of W&B; the words around it tell them apart."""
    before, after = match.string[max(0, match.start() - 48) : match.start()], match.string[match.end() :][:24]
    return _KEY_CONTEXT.search(before) is None and _DIGEST_CONTEXT.search(f"{before} {after}") is not None


# Texts that match a pattern and are not secrets.
_EXCEPTIONS: Dict[str, Callable[[Match[str]], bool]] = {
    "aws secret access key": _is_path,
    "long base64": _is_path,
    "option": _is_placeholder,
    "40 hexadecimal digits": _is_digest,
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
