"""Masks what nobody but the job's owner may read: a failure reason is shown in the console and in events."""

import json
import os
import re
from typing import Any, Iterator, List, Mapping, Optional, Pattern, Tuple

from lightning_sm._job import TrainingJob

__all__ = ["MASK", "Masker", "sounds_secret"]

MASK = "***"

# A tokenizer or a number of tokens is no secret.
_NAME = r"(?:secret|token(?!iz|s(?![a-z]))|passw(?:or)?d|passphrase|(?:api|access|private|signing)[_-]?key|credential)"
_SOUNDS_SECRET = re.compile(_NAME, re.IGNORECASE)
# Shorter values, and words that are everywhere, would tear the text to pieces and protect nobody.
_LEAST = 4
_WORDS = frozenset({"true", "false", "none", "null", "auto"})

# What is secret by its form, each with what remains of it.
_FORMS: Tuple[Tuple[Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), remains)
    for pattern, remains in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", MASK),
        (r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"]*@", rf"\1{MASK}@"),
        (r"\b((?i:bearer|basic|aws4-hmac-sha256)\s+)(?=[^\s]*[0-9=._~/+-])[A-Za-z0-9._~+/=-]{8,}", rf"\1{MASK}"),
        (
            rf"(?i)(\b[\w.-]*(?:{_NAME}|signature)[\w-]*[\"']?\s*[=:]\s*(?:b?[\"'](?=[^\"']))?)"
            r"(?!\*\*\*)[^\s\"',;&)}\]]+",
            rf"\1{MASK}",
        ),
        (r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}\b", MASK),
        # A secret access key: 40 characters of base64, which a digest in hexadecimal is not.
        (r"(?<![A-Za-z0-9/+=])(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[g-z])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])", MASK),
        # A session token.
        (r"(?<![A-Za-z0-9/+=])(?=[a-z0-9/+]*[A-Z])(?=[A-Za-z/+]*[0-9])[A-Za-z0-9/+]{100,}={0,2}", MASK),
        (r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,}", MASK),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", MASK),
    )
)


def sounds_secret(name: str) -> bool:
    """Whether a hyperparameter or variable of this name holds a secret."""
    return _SOUNDS_SECRET.search(name) is not None


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
        """Return ``text`` without secrets."""
        for value in self._values:
            text = text.replace(value, MASK)
        for pattern, remains in _FORMS:
            text = pattern.sub(remains, text)
        return text


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
    """A value as it may stand in a message: as it is, in one line, quoted by Python, or quoted by JSON."""
    return [value, " ".join(value.split()), repr(value)[1:-1], json.dumps(value)[1:-1]]
