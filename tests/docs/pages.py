"""The documentation as text: its pages, headings, links and blocks of code."""

import re
from pathlib import Path

from tools.docs_includes import on_page_markdown

__all__ = ["PAGES", "ROOT", "blocks", "headings", "links", "name_of", "text_of"]

ROOT = Path(__file__).resolve().parents[2]
_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [path for path in _TOP if path.is_file()] + sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path):
    return str(path.relative_to(ROOT))


def text_of(path):
    """A page, with the files that it includes."""
    return on_page_markdown(path.read_text(encoding="utf-8"))


def blocks(path, language):
    return [body for name, body in _FENCE.findall(text_of(path)) if name == language]


def headings(path):
    """The anchors that MkDocs and GitHub make of the headings."""
    text = _FENCE.sub("", text_of(path))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()) for title in titles}


def links(path):
    """The targets of the page's links, without those in code."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text_of(path)))
    return re.findall(r"\]\(([^)\s]+)\)", text)
