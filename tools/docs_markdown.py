"""A griffe extension for the API reference: docstrings in reStructuredText become Markdown."""

import re
from typing import Any

from griffe import Extension, Object

__all__ = ["DocstringsAsMarkdown", "as_markdown"]

_ROLE = re.compile(r":\w+:`(?P<short>~?)(?P<path>[\w.]+)`")
# A term of a definition list, and the indented lines below it.
_DEFINITION = re.compile(r"^(?P<term>``[^\n]+``[^\n:]*)\n(?P<text>(?:[ ]{2,}\S[^\n]*\n?)+)", re.MULTILINE)


class DocstringsAsMarkdown(Extension):
    """Rewrites the docstrings of all objects by :func:`as_markdown`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring with links, lists and code of Markdown.

    A role becomes a link, a definition list becomes a list, and the ``::`` before a literal block a colon. An
    ``Example::`` is written as the section ``Examples:`` of Google style, so that it is highlighted.

    Args:
        docstring: The docstring, without its indentation.
    """
    text = re.sub(r"^Examples?::?\n+(?= )", "Examples:\n", docstring, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = _DEFINITION.sub(lambda found: f"- {found['term']}: {' '.join(found['text'].split())}\n", text)
    # A list needs an empty line before it, and none between its entries.
    text = re.sub(r"^(- ``.*)\n\n(?=- ``)", r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(?!- )(\S.*)\n(?=- ``)", r"\1\n\n", text, flags=re.MULTILINE)
    return _ROLE.sub(_link, text)


def _link(role: "re.Match[str]") -> str:
    path = role.group("path")
    shown = f"`{path.rpartition('.')[2] if role.group('short') else path}`"
    is_public = path.startswith("lightning_sm.") and "._" not in path
    return f"[{shown}][{path}]" if is_public else shown
