"""The examples in the package's docstrings run and print what they say."""

import doctest
import importlib

import pytest

from tests.docs.pages import ROOT, name_of

_MODULES = [path for path in sorted((ROOT / "lightning_sm").rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", _MODULES, ids=name_of)
def test_examples(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = path.relative_to(ROOT).with_suffix("").parts
    try:
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except ImportError as error:
        pytest.skip(f"{path} cannot be imported here: {error}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0
