"""What the rows of the level core cannot show: answers for the other one of their two versions."""

import sys
from types import SimpleNamespace

import pytest

from lightning_sm._lightning import legacy

_OLD, _NEW = (1, 5), (1, 9)


class _Namespace:
    """A namespace of any version, whose modules have these attributes."""

    def __init__(self, version, **attributes):
        self.version = version
        self.attributes = attributes

    def module(self, path=""):
        return SimpleNamespace(**self.attributes)


@pytest.mark.parametrize(
    ("current", "completed", "epochs"),
    [(1, 2, (2, 1)), (0, 0, (0, 0)), (3, 0, (3, 3))],
    ids=["trained", "not trained", "resumed from a fit that had ended"],
)
def test_epochs_that_were_trained(current, completed, epochs):
    fit_loop = SimpleNamespace(epoch_progress=SimpleNamespace(total=SimpleNamespace(completed=completed)))
    trainer = SimpleNamespace(current_epoch=current, fit_loop=fit_loop)
    assert tuple(legacy.epochs_trained(_Namespace(version), trainer) for version in (_OLD, _NEW)) == epochs


@pytest.mark.parametrize("version", [_OLD, _NEW])
def test_a_strategy_is_found_in_either_kind_of_trainer(version):
    names = {"strategy": 1} if version == _NEW else {"training_type_plugin": 1}
    assert legacy.strategy_of(SimpleNamespace(**names)) == 1


@pytest.mark.parametrize("version", [_OLD, _NEW])
def test_methods_that_became_properties(version):
    environment = type("Environment", (), {"main_address": "algo-1", "main_port": 7777})
    legacy.add_names_of_environment(_Namespace(version), environment)
    assert hasattr(environment, "master_address") is (version == _OLD)
    if version == _OLD:
        assert (environment().master_address(), environment().master_port()) == ("algo-1", 7777)


@pytest.mark.parametrize("version", [_OLD, _NEW])
def test_the_parser_sees_only_these_arguments(monkeypatch, version):
    seen = []
    parser = SimpleNamespace(parse_args=lambda *args, defaults: seen.append((args, sys.argv)))
    monkeypatch.setattr(sys, "argv", ["train.py", "--trainer.logger", "false"])
    legacy.parse_args(_Namespace(version), parser, ["fit"])
    assert sys.argv == ["train.py", "--trainer.logger", "false"]
    assert seen == [((["fit"],), ["train.py"] if version == _OLD else sys.argv)]


@pytest.mark.parametrize(("version", "value", "backend"), [(_OLD, "gloo", "gloo"), (_OLD, "", None), (_NEW, "x", None)])
def test_the_variable_of_the_backend_counts_where_lightning_reads_it(monkeypatch, version, value, backend):
    monkeypatch.setenv("PL_TORCH_DISTRIBUTED_BACKEND", value)
    assert legacy.backend_variable(_Namespace(version)) == backend
