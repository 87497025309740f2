import inspect

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._settings.classes import find_class, import_class, init_parameters

PL = Namespace("pytorch_lightning")
_EMPTY = inspect.Parameter.empty


def test_a_loaded_subclass_by_its_bare_name():
    class Mine(PL.module().LightningModule):
        pass

    class MyData(PL.module().LightningDataModule):
        pass

    class OfMine(Mine):
        pass

    assert find_class(PL, "OfMine") is OfMine
    assert find_class(PL, "MyData") is MyData


@pytest.mark.parametrize(
    "name", ["", ".", "..x", "Nothing", "no.such.Module", "os.path", "os.sep", "a b.c", "<x.y object at 0x7f>"]
)
def test_no_class(name):
    assert find_class(PL, name) is None
    assert import_class(name) is None


def test_a_module_that_is_broken_is_heard(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        import_class("broken_module.Model")


class _Base:
    def __init__(self, data_dir, batch_size=1):
        pass


class _Own(_Base):
    def __init__(self, root):
        super().__init__(root)


class _Passing(_Base):
    def __init__(self, root, batch_size=2, **kwargs):
        super().__init__(root, batch_size, **kwargs)


@pytest.mark.parametrize(
    ("cls", "defaults"),
    [(_Own, {"root": _EMPTY}), (_Passing, {"root": _EMPTY, "batch_size": 2, "data_dir": _EMPTY})],
)
def test_parameters_of_a_base_are_a_class_s_own_where_it_passes_them_on(cls, defaults):
    found = init_parameters(cls)
    assert list(found) == list(defaults)
    assert {name: parameter.default for name, parameter in found.items()} == defaults
