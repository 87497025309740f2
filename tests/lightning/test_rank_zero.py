import sys
import types

import pytest

from lightning_sm._lightning.namespaces import RANK_ZERO_MODULES, installed_namespaces, set_rank_zero_rank


@pytest.mark.parametrize("name", RANK_ZERO_MODULES)
def test_every_place_in_which_a_lightning_keeps_its_rank(monkeypatch, name):
    module = types.ModuleType(name)
    vars(module)["rank_zero_only"] = types.SimpleNamespace(rank=0)
    monkeypatch.setitem(sys.modules, name, module)
    set_rank_zero_rank(3)
    assert vars(module)["rank_zero_only"].rank == 3


def test_modules_that_are_absent_or_hold_none_do_no_harm(monkeypatch):
    monkeypatch.delitem(sys.modules, RANK_ZERO_MODULES[0], raising=False)
    monkeypatch.setitem(sys.modules, RANK_ZERO_MODULES[1], types.ModuleType("empty"))
    set_rank_zero_rank(3)


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_real_ones(namespace):
    rank_zero = namespace.module("utilities.rank_zero" if namespace.version >= (1, 6) else "utilities.distributed")
    said = []
    for rank in (1, 0):
        set_rank_zero_rank(rank)
        rank_zero.rank_zero_only(lambda rank=rank: said.append(rank))()
    assert said == [0]
