import importlib
import importlib.util
import pkgutil
import sys

import pytest

from lightning_sm._lightning.import_hook import add_import_hook


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``made_up`` with a module ``below`` and a data file."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text("import sys\nvalue = 5\n")
    (folder / "below.py").write_text("value = 6\n")
    (folder / "data.txt").write_text("data")
    (folder / "broken.py").write_text("raise OSError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "made_up"
    for name in [name for name in sys.modules if name.split(".")[0] == "made_up"]:
        del sys.modules[name]


def test_module_below_a_package_and_at_once_where_it_has_been_imported(package):
    calls = []
    add_import_hook(f"{package}.below", lambda: calls.append(1))
    importlib.import_module(package)
    assert calls == []
    assert importlib.import_module(f"{package}.below").value == 6
    assert calls == [1]
    add_import_hook(package, lambda: calls.append(2))
    assert calls == [1, 2]


def test_module_keeps_its_own_loader(package):
    add_import_hook(package, lambda: None)
    module = importlib.import_module(package)
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert pkgutil.get_data(package, "data.txt") == b"data"
    assert importlib.reload(module).value == 5


def test_import_that_fails_is_explained(package):
    name = f"{package}.broken"
    explain = {"broken": ValueError("It is broken because.")}.get
    add_import_hook(name, lambda: pytest.fail("called"), explain=lambda error: explain(str(error)))
    with pytest.raises(ValueError, match=r"It is broken because\.") as info:
        importlib.import_module(name)
    assert isinstance(info.value.__cause__, OSError)


class _Wrapper:
    """A finder in the place of another, as profilers and lazy importers put one there."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, *arguments):
        return self.finder.find_spec(*arguments)


def test_finders_that_others_have_wrapped(package):
    calls = []
    add_import_hook(package, lambda: calls.append(1))
    sys.meta_path[:] = [_Wrapper(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
    assert importlib.import_module(package).value == 5
    assert importlib.import_module(f"{package}.below").value == 6
    assert calls == [1]
