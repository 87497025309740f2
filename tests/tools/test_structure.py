"""The package keeps the form that ``docs/architecture.md`` describes. import-linter checks who may import whom."""

from collections import Counter

import pytest

from tools.structure import PACKAGE, measure


@pytest.fixture(scope="module")
def found():
    return measure()


def test_rooms_have_few_files_and_these_are_neither_tiny_nor_long(found):
    rooms = Counter(path.split("/")[1] for path in found.lines if path.count("/") == 2)
    assert len(rooms) <= 16, rooms
    assert max(rooms.values()) <= 17, rooms
    assert found.median >= 120
    assert found.longest[1] <= 350, found.longest


def test_few_modules_stand_at_the_root_on_few_floors(found):
    assert len(found.root_modules) <= 12, found.root_modules
    assert found.circles == ()
    assert 1 <= found.floors <= 10


def test_nobody_takes_a_private_name_of_another_module(found):
    assert found.private_imports == ()


def test_nothing_within_imports_the_whole_package(found):
    assert found.package_imports == ()


def test_what_breaks_a_rule_is_found(tmp_path):
    for name, text in {
        "__init__.py": "from lightning_sm.high import public\n",
        "high.py": "from lightning_sm.low import _private, public\n",
        "low/__init__.py": "def late():\n    from ..high import public\n    import lightning_sm\n",
        "low/deep.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lightning_sm.high import _type\n",
    }.items():
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = measure(tmp_path)
    assert found.lines["lightning_sm/low/deep.py"] == found.longest[1] == 3
    assert found.root_modules == ("__init__.py", "high.py")
    assert found.circles == (("high", "low"),)
    assert found.private_imports == ("lightning_sm/high.py:1: _private of lightning_sm.low",)
    assert found.package_imports == ("lightning_sm/low/__init__.py:3",)
