import pickle
from typing import Any

import pytest

from lightning_sm import SMDDPStrategy
from lightning_sm._distributed.smddp import SMDDP_MIXIN, smddp_strategy_class
from lightning_sm._lightning import NAMESPACES, LazyClass, installed_namespaces
from lightning_sm._lightning.compat_strategies import ddp_base_path
from lightning_sm._lightning.namespaces import resolve_class
from tests.helpers.fresh import run_fresh

_BOTH = len(installed_namespaces()) == 2
needs_both = pytest.mark.skipif(not _BOTH, reason="needs both of Lightning's namespaces")


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_one_class_for_each_namespace(namespace):
    module, _, base = ddp_base_path(namespace).partition(":")
    cls = smddp_strategy_class(namespace)
    assert cls is smddp_strategy_class(namespace)
    assert issubclass(cls, getattr(namespace.module(module), base))
    assert (cls.__name__, cls.__module__) == ("SMDDPStrategy", "lightning_sm")
    assert cls.__doc__.startswith("Distributed data parallel training on SageMaker")


@needs_both
def test_the_classes_share_nothing_but_our_part():
    first, second = (smddp_strategy_class(namespace) for namespace in NAMESPACES)
    assert not issubclass(first, second)
    assert {base.__name__ for base in first.__mro__} & {"SMDDPMixin"}


def test_once_a_lightning_is_loaded_the_class_itself_is_given():
    installed_namespaces()[0].module()
    assert isinstance(resolve_class("SMDDPStrategy", SMDDP_MIXIN, smddp_strategy_class), type)


def test_deferred_is_called_subclassed_and_asked_as_a_class(monkeypatch):
    installed_namespaces()[0].module()
    deferred: Any = LazyClass("SMDDPStrategy", SMDDP_MIXIN, smddp_strategy_class)
    cls = smddp_strategy_class(next(namespace for namespace in NAMESPACES if namespace.is_loaded))
    strategy = deferred(process_group_backend="gloo")
    assert type(strategy) is cls
    assert isinstance(strategy, deferred)
    assert not isinstance("text", deferred)
    assert issubclass(cls, deferred)
    assert not issubclass(str, deferred)

    class Mine(deferred):
        mine = True

    assert issubclass(Mine, cls)
    assert isinstance(Mine(), deferred)
    assert deferred.strategy_name == "smddp"
    with pytest.raises(AttributeError, match="nothing"):
        _ = deferred.nothing
    with pytest.raises(AttributeError, match="__wrapped__"):
        _ = deferred.__wrapped__
    assert "SMDDPStrategy" in repr(deferred)
    assert (deferred.__name__, deferred.__module__) == ("SMDDPStrategy", "lightning_sm")


def test_public_name_is_the_class_here():
    assert SMDDPStrategy.strategy_name == "smddp"


@needs_both
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_name_taken_before_any_lightning_serves_the_one_that_comes(name):
    said = run_fresh(
        f"""
        import sys
        from lightning_sm import SMDDPStrategy
        say(type(SMDDPStrategy).__name__, "torch" in sys.modules)
        import {name} as pl
        strategy = SMDDPStrategy(process_group_backend="gloo")
        say(isinstance(strategy, pl.strategies.DDPStrategy), isinstance(strategy, SMDDPStrategy))
        trainer = pl.Trainer(accelerator="cpu", strategy=strategy, logger=False, enable_checkpointing=False)
        say(trainer.strategy is strategy)
        """
    )
    assert said == [["LazyClass", False], [True, True], [True]]


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_classes_and_instances_are_pickled_in_either_namespace(namespace):
    for other in installed_namespaces():
        other.module()
    cls = smddp_strategy_class(namespace)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert type(pickle.loads(pickle.dumps(cls(process_group_backend="gloo")))) is cls
