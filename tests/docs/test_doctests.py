"""The examples in the package's docstrings run and print what they say."""

import ast
import doctest
import importlib
import os

import pytest

from tests.docs.pages import ROOT
from tests.helpers.environ import without_launcher

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _examples():
    """Every docstring with an example: its name, its module and the example, found without importing anything."""
    parser = doctest.DocTestParser()
    for path in sorted((ROOT / "lightning_sm").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for name, docstring, line in _docstrings(ast.parse(path.read_text(encoding="utf-8")), module):
            if ">>>" in docstring:
                yield pytest.param(module, parser.get_doctest(docstring, {}, name, str(path), line), id=name)


def _docstrings(node, name):
    docstring = ast.get_docstring(node)
    if docstring:
        yield name, docstring, node.body[0].lineno - 1
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(child, f"{name}.{child.name}")


@pytest.mark.parametrize(("module", "example"), list(_examples()))
def test_example(module, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in set(os.environ) - set(without_launcher(os.environ)):
        monkeypatch.delenv(name)
    # As `python -m doctest` runs it: with the names of its module.
    try:
        example.globs.update(vars(importlib.import_module(module)))
    except ImportError as error:
        pytest.skip(f"{module} cannot be imported here: {error}")
    failures = []
    doctest.DocTestRunner(optionflags=_FLAGS).run(example, out=failures.append)
    assert not failures, "".join(failures)
