"""A griffe extension for the API reference: docstrings in reStructuredText become Markdown."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension, Object

__all__ = ["DocstringsAsMarkdown", "as_markdown"]

_ROLE = re.compile(r":\w+:`(?P<short>~?)(?P<path>[\w.]+)`")
# A term of a definition list, and the indented lines below it.
_DEFINITION = re.compile(r"^(?P<term>\S[^\n]*[^\n:.])\n(?P<text>(?:  (?! )[^\n]+\n?)+)", re.MULTILINE)
# An example outside of a section: Markdown would take its prompt for quotations.
_SESSION = re.compile(r"^>>> (?:[^\n]+(?:\n|\Z))+", re.MULTILINE)


class DocstringsAsMarkdown(Extension):
    """Rewrites the docstrings of all objects by :func:`as_markdown`; a comment ``#:`` is an attribute's docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is None and obj.is_attribute:
            comment = _comment_above(obj)
            obj.docstring = Docstring(comment, parent=obj) if comment else None
            obj.labels -= {"class-attribute", "instance-attribute"}
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring with links, lists and code of Markdown.

    A role becomes a link, a definition list becomes a list, and the ``::`` before a literal block a colon. An
    ``Example::`` is written as the section ``Examples:`` of Google style, so that it is highlighted.

    Args:
        docstring: The docstring, without its indentation.
    """
    text = re.sub(r"^Examples?::?\n+(?= +>>>)", "Examples:\n", docstring, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = _DEFINITION.sub(lambda found: f"- {found['term']}: {' '.join(found['text'].split())}\n", text)
    text = _SESSION.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)
    # A list needs an empty line before it, and none between its entries.
    text = re.sub(r"^(- .*)\n\n(?=- )", r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(?!- )(\S.*)\n(?=- )", r"\1\n\n", text, flags=re.MULTILINE)
    return _ROLE.sub(_link, text)


def _comment_above(attribute: Object) -> str:
    """The lines that begin with ``#:`` directly above an attribute."""
    if attribute.lineno is None or not isinstance(attribute.filepath, Path):
        return ""
    above = attribute.filepath.read_text(encoding="utf-8").splitlines()[: attribute.lineno - 1]
    lines = list(takewhile(lambda line: line.startswith("#:"), (line.strip() for line in reversed(above))))
    return "\n".join(line[2:].strip() for line in reversed(lines))


def _link(role: "re.Match[str]") -> str:
    path = role.group("path")
    shown = f"`{path.rpartition('.')[2] if role.group('short') else path}`"
    is_public = path.startswith("lightning_sm.") and "._" not in path
    return f"[{shown}][{path}]" if is_public else shown
