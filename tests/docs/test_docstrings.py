"""Docstrings in the API reference: what the package writes in reStructuredText is Markdown there."""

import pytest

pytest.importorskip("griffe", reason="griffe is not installed: the extra `docs` has it")

from tools.docs_markdown import as_markdown


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("See :class:`~lightning_sm.Topology`.", "See [`Topology`][lightning_sm.Topology]."),
        ("See :meth:`resolve`.", "See `resolve`."),
        ("See :class:`lightning_sm._settings.Settings`.", "See `lightning_sm._settings.Settings`."),
        ("In a script::\n\n    code()", "In a script:\n\n    code()"),
        ("Example::\n\n    >>> 1\n    1", "Examples:\n    >>> 1\n    1"),
        (
            "Variables:\n\n``A``, ``B``\n  One\n  and two.\n``C``\n  Three.\n",
            "Variables:\n\n- ``A``, ``B``: One and two.\n- ``C``: Three.\n",
        ),
        ("Example::\n\n    code()", "Example:\n\n    code()"),
        (
            "Files:\n\n``a.json``\n  One.\nConfig files\n  Two.\n",
            "Files:\n\n- ``a.json``: One.\n- Config files: Two.\n",
        ),
        ("Text.\n\n>>> 1 + 1\n2\n\nMore.", "Text.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."),
        ("``A``\n  One.\n\n``B``\n  Two.\n", "- ``A``: One.\n- ``B``: Two.\n"),
    ],
)
def test_as_markdown(docstring, markdown):
    assert as_markdown(docstring) == markdown
