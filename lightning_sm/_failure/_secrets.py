"""Masks what nobody but the job's owner may read: a failure reason is shown in the console and in events."""

import json
import os
import re
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Mapping, Match, Optional, Pattern
from urllib.parse import quote

from lightning_sm._failure._secret_patterns import NAME, PATTERNS
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["MASK", "Masker", "mask_forms", "sounds_secret"]

MASK = "***"

# Eight times what SageMaker shows. More text would hold the interpreter's lock while other ranks wait for this one.
_MOST = 8 * 1024
# Whatever a message holds, no value of a secret is looked for further on.
_MOST_OF_VALUES = 1024 * 1024
# A secret that the cut went through is at most this long, or is told by its beginning.
_LONGEST = 256

# Shorter values, and words that are everywhere, would tear the text to pieces and protect nobody.
_LEAST = 4
_WORDS = frozenset({"true", "false", "none", "null", "auto"})


def sounds_secret(name: str) -> bool:
    """Whether a hyperparameter or variable of this name holds a secret."""
    return re.search(NAME, name, re.IGNORECASE) is not None


class Masker:
    """Replaces secrets in text by asterisks.

    They are AWS keys and tokens and others that can be told by their form, users and passwords in URLs, values beside a
    name that sounds secret (token, secret, password, API key, credential), and wherever they stand the values of those
    hyperparameters and environment variables that have such a name.

    Args:
        job: The job, whose hyperparameters are looked through.
        environ: The variables to look through instead of ``os.environ``.
    """

    def __init__(self, job: TrainingJob, environ: Optional[Mapping[str, str]] = None) -> None:
        variables = os.environ if environ is None else environ
        found = [
            *_secret_values(job.hyperparameters.values),
            *_secret_values(job.hyperparameters.reserved),
            *_secret_values(variables),
        ]
        self._values = sorted({spelt for value in found for spelt in _spellings(value)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the first 8,192 characters of ``text`` without secrets, or a little less of a longer text."""
        text = text[:_MOST_OF_VALUES]
        for value in self._values:
            text = text.replace(value, MASK)
        masked = mask_forms(text[:_MOST])
        if len(text) <= _MOST:
            return masked
        # The cut may have left half of a secret, which nothing tells from a word.
        return masked[: max(len(masked) - _LONGEST, masked.rfind(MASK) + len(MASK))]


def mask_forms(text: str) -> str:
    """Mask what is secret by its form, in a time that grows with the length of ``text`` and not with its square."""
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
    is_ordinary = _ORDINARY.get(name)

    def replace(match: Match[str]) -> str:
        group = "secret" if "secret" in match.re.groupindex else 0
        if match[group].startswith(MASK) or (is_ordinary is not None and is_ordinary(match)):
            return match[0]
        start, whole_start = match.start(group), match.start()
        return f"{match[0][: start - whole_start]}{MASK}{match[0][match.end(group) - whole_start :]}"

    return replace


def _is_path(match: Match[str]) -> bool:
    """Base64 has a slash in 64 characters, on average."""
    return match[0].count("/") > 3 + len(match[0]) // 32


def _is_placeholder(match: Match[str]) -> bool:
    """Such as ``--token TOKEN`` in the usage of a program."""
    secret = match["secret"]
    return (
        secret.isupper()
        and secret.replace("_", "") in match[0].upper().replace("-", "").replace("_", "")[: -len(secret)]
    )


def _has_one_case(match: Match[str]) -> bool:
    return match[0].lower() == match[0] or match[0].upper() == match[0]


_KEY_WORDS = re.compile(r"(?i)wandb|w&b|api|key|token|log ?in|secret|credential")
_DIGEST_WORDS = re.compile(
    r"(?i)sha-?1|digest|commit|\brev|hash|check ?sum|snapshot|blob|\bgit|etag|\bHEAD\b|branch|merge|fingerprint|version"
)


def _is_digest(match: Match[str]) -> bool:
    before, after = match.string[max(0, match.start() - 48) : match.start()], match.string[match.end() :][:24]
    return _KEY_WORDS.search(before) is None and _DIGEST_WORDS.search(f"{before} {after}") is not None


# What has the form of a secret, and is none.
_ORDINARY: Dict[str, Callable[[Match[str]], bool]] = {
    "aws secret access key": _is_path,
    "long base64": _is_path,
    "lines of base64": lambda match: _has_one_case(match) or _is_path(match),
    "option": _is_placeholder,
    "wandb or other key of 40 hexadecimal digits": _is_digest,
}


def _secret_values(values: Any, is_secret: bool = False) -> Iterator[str]:
    """Every text or number below a name that sounds secret."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _secret_values(value, is_secret or sounds_secret(str(name)))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _secret_values(value, is_secret)
    elif is_secret and isinstance(values, (str, int, float)) and not isinstance(values, bool):
        text = str(values).strip()
        if len(text) >= _LEAST and text.lower() not in _WORDS:
            yield text


def _spellings(value: str) -> List[str]:
    """A value as it may stand in a message: as it is, in one line, quoted by Python, by JSON, or for a URL."""
    return [
        value,
        " ".join(value.split()),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        quote(value, safe="", errors="replace"),
    ]
