"""A hook for MkDocs: a page may hold a file of the repository's root, such as the changelog.

The line ``<!-- include: CHANGELOG.md -->`` is replaced by the file. Its links are relative to the root: those into
``docs/`` become links between pages, others lead to the repository.
"""

import re
from pathlib import Path
from typing import Any

__all__ = ["on_page_markdown"]

_ROOT = Path(__file__).resolve().parents[1]
_REPOSITORY = "https://github.com/lightning-sm/lightning-sm/blob/main/"
_INCLUDE = re.compile(r"^<!-- include: (?P<name>[\w.]+) -->$", re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)#\s][^)\s]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with the files that it includes; MkDocs calls it.

    Args:
        markdown: The text of a page that stands directly in ``docs/``.

    Raises:
        FileNotFoundError: A file that it includes is missing.
    """

    def included(mark: "re.Match[str]") -> str:
        return _LINK.sub(_moved, (_ROOT / mark.group("name")).read_text(encoding="utf-8"))

    return _INCLUDE.sub(included, markdown)


def _moved(link: "re.Match[str]") -> str:
    target = link.group("target")
    if re.match(r"\w+:", target):
        return link.group()
    if target.startswith("docs/"):
        return f"]({target[len('docs/') :]})"
    pages = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
    name, hash_, anchor = target.partition("#")
    return f"]({pages[name]}{hash_}{anchor})" if name in pages else f"]({_REPOSITORY}{target})"
