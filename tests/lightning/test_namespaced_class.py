import copy
import functools
import pickle
from typing import Any, List

import pytest

from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import NAMESPACES, LazyClass, installed_namespaces
from lightning_sm._lightning.legacy import strategy_path
from lightning_sm._lightning.namespaces import resolve_class
from tests.helpers.fresh import run_fresh

_strategy_class = functools.partial(strategy_class, name="SMDDPStrategy")
_BOTH = len(installed_namespaces()) == 2
needs_both = pytest.mark.skipif(not _BOTH, reason="needs both of Lightning's namespaces")


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_one_class_for_each_namespace(namespace):
    module, _, base = strategy_path(namespace, "DDP").partition(":")
    cls = _strategy_class(namespace)
    assert cls is _strategy_class(namespace)
    assert issubclass(cls, getattr(namespace.module(module), base))
    assert (cls.__name__, cls.__module__) == ("SMDDPStrategy", "lightning_sm")
    assert cls.__doc__.startswith("Distributed data parallel training on SageMaker")


def test_deferred_is_called_subclassed_and_asked_as_a_class(monkeypatch):
    installed_namespaces()[0].module()
    deferred: Any = LazyClass("SMDDPStrategy", _strategy_class)
    cls = _strategy_class(next(namespace for namespace in NAMESPACES if namespace.is_loaded))
    assert resolve_class("SMDDPStrategy", _strategy_class) is cls
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


@needs_both
@pytest.mark.full
def test_name_taken_before_any_lightning_serves_the_one_that_comes():
    said = run_fresh(
        """
        import sys
        from lightning_sm import SMDDPStrategy
        say(type(SMDDPStrategy).__name__, "torch" in sys.modules)
        import pytorch_lightning as pl
        strategy = SMDDPStrategy(process_group_backend="gloo")
        say(isinstance(strategy, pl.strategies.DDPStrategy), isinstance(strategy, SMDDPStrategy))
        trainer = pl.Trainer(accelerator="cpu", strategy=strategy, logger=False, enable_checkpointing=False)
        say(trainer.strategy is strategy)
        """
    )
    assert said == [["LazyClass", False], [True, True], [True]]


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_instances_are_pickled_and_copied_in_either_namespace(namespace):
    for other in installed_namespaces():
        other.module()
    cls = _strategy_class(namespace)
    strategy: Any = cls(process_group_backend="gloo")
    copies: List[Any] = [pickle.loads(pickle.dumps(strategy)), copy.deepcopy(strategy)]
    for again in copies:
        assert type(again) is cls
        assert vars(again)["_process_group_backend"] == "gloo"
    assert type(copy.deepcopy(type("Mine", (cls,), {})())).__name__ == "Mine"
