import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._settings.classes import find_class, import_class

PL = Namespace("pytorch_lightning")


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
