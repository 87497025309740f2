import sys
import types
from typing import Any

import pytest

from lightning_sm._lightning import compat, compat_strategies, installed_namespaces, train_progress, trainer_hooks
from lightning_sm._lightning.compat import SHIMS, Shim
from tests.helpers.fresh import run_fresh

_OLD, _NEW = (1, 5), (2, 6)


def _function(name):
    modules = (compat, compat_strategies, train_progress, trainer_hooks)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


class _Namespace:
    """A namespace of any version, whose modules are recorders."""

    name = "pytorch_lightning"

    def __init__(self, version, **attributes):
        self.version = version
        self.attributes = attributes

    def module(self, path=""):
        return types.SimpleNamespace(**self.attributes)


@pytest.mark.parametrize("shim", SHIMS.values(), ids=lambda shim: shim.name)
def test_each_shim_is_a_function_with_a_reason(shim):
    assert callable(_function(shim.name))
    assert shim.link.startswith("https://github.com/")
    assert (1, 5) <= shim.since < shim.until


@pytest.mark.parametrize(
    ("version", "serves"), [((1, 5), False), ((1, 6), True), ((1, 9), True), ((2, 0), False), ((2, 1), False)]
)
def test_serves_from_the_first_version_up_to_the_last(version, serves):
    assert Shim("x", (1, 6), (2, 0), "https://").serves(version) is serves


@pytest.mark.parametrize(
    ("function", "version", "answer"),
    [
        ("ddp_base_path", (1, 5), "plugins:DDPPlugin"),
        ("ddp_base_path", (1, 6), "strategies:DDPStrategy"),
        ("cli_base_path", (1, 6), "utilities.cli:LightningCLI"),
        ("cli_base_path", (1, 7), "cli:LightningCLI"),
        ("save_config_arguments", (1, 7), {"save_config_overwrite": True}),
        ("save_config_arguments", (1, 8), {"save_config_kwargs": {"overwrite": True}}),
        ("excess_step", (1, 5), 1),
        ("excess_step", (1, 6), 0),
    ],
)
def test_answers_by_version(function, version, answer):
    assert _function(function)(_Namespace(version)) == answer


@pytest.mark.parametrize(
    ("version", "value", "backend"), [((1, 7), "gloo", "gloo"), ((1, 7), "", None), ((1, 8), "gloo", None)]
)
def test_backend_variable_counts_where_lightning_reads_it(monkeypatch, version, value, backend):
    monkeypatch.setenv("PL_TORCH_DISTRIBUTED_BACKEND", value)
    assert compat_strategies.backend_variable(_Namespace(version)) == backend


@pytest.mark.parametrize(("version", "registry"), [(_OLD, "TrainingTypePluginsRegistry"), (_NEW, "StrategyRegistry")])
def test_strategies_are_registered_where_lightning_looks(version, registry):
    calls = []
    recorder = types.SimpleNamespace(register=lambda *args, **kwargs: calls.append((args, kwargs)))
    compat_strategies.register_strategy(
        _Namespace(version, **{registry: recorder}), "smddp", int, "About.", find_unused=True
    )
    assert calls == [(("smddp", int), {"description": "About.", "override": True, "find_unused": True})]


@pytest.mark.parametrize(("version", "has"), [(_OLD, True), ((1, 6), False), (_NEW, False)])
def test_methods_that_became_properties(version, has):
    class Environment:
        main_address = "algo-1"
        main_port = 7777

    compat_strategies.add_legacy_environment_methods(_Namespace(version), Environment)
    assert hasattr(Environment, "master_address") is has
    if has:
        environment: Any = Environment()
        assert (environment.master_address(), environment.master_port()) == ("algo-1", 7777)


def test_strategy_of_either_kind_of_trainer():
    assert compat_strategies.strategy_of(types.SimpleNamespace(strategy=1)) == 1
    assert compat_strategies.strategy_of(types.SimpleNamespace(training_type_plugin=2)) == 2


@pytest.mark.parametrize(
    ("version", "current", "completed", "epochs"),
    [
        (_OLD, 1, 2, 2),
        (_OLD, 0, 0, 0),  # nothing was trained
        (_OLD, 3, 0, 3),  # resumed from a checkpoint of a finished training
        ((1, 6), 2, 2, 2),
        (_NEW, 2, 2, 2),
    ],
)
def test_epochs_that_were_trained(version, current, completed, epochs):
    progress = types.SimpleNamespace(total=types.SimpleNamespace(completed=completed))
    fit_loop = types.SimpleNamespace(epoch_progress=progress)
    trainer = types.SimpleNamespace(current_epoch=current, fit_loop=fit_loop)
    assert compat.epochs_trained(_Namespace(version), trainer) == epochs


@pytest.mark.parametrize(("version", "hidden"), [(_OLD, True), ((1, 6), True), ((1, 7), False), (_NEW, False)])
def test_the_parser_sees_only_these_words(monkeypatch, version, hidden):
    seen = []

    def parse_args(*args, defaults):
        seen.append((args, sys.argv))  # which argparse takes its program's name from, too
        assert defaults
        raise SystemExit

    monkeypatch.setattr(sys, "argv", ["train.py", "--trainer.logger", "false"])
    with pytest.raises(SystemExit):
        compat.parse_words(_Namespace(version), types.SimpleNamespace(parse_args=parse_args), ["fit"])
    assert sys.argv == ["train.py", "--trainer.logger", "false"]
    assert seen == [((["fit"],), ["train.py"] if hidden else sys.argv)]


@pytest.mark.parametrize(("version", "there", "added"), [(_OLD, [], True), (_OLD, ["data"], False), (_NEW, [], False)])
def test_any_data_module_can_be_named(version, there, added):
    asked = []
    parser = types.SimpleNamespace(
        _actions=[types.SimpleNamespace(dest=name) for name in there],
        add_subclass_arguments=lambda cls, key, **more: asked.append((cls, key, more["required"])),
    )
    compat.add_any_data_module(_Namespace(version, LightningDataModule=int), parser)
    assert asked == ([(int, "data", False)] if added else [])


@pytest.mark.slow
@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_infinite_barrier_makes_no_group_beside_smddp_and_stays_elsewhere(namespace):
    if not SHIMS["replace_infinite_barrier"].serves(namespace.version):
        pytest.skip("this Lightning has no infinite barrier")
    fabric = "lightning.fabric" if namespace.name.startswith("lightning.") else "lightning_fabric"
    said = run_fresh(
        f"""
        import torch.distributed as dist
        import {namespace.name}
        from {fabric}.utilities.distributed import _InfiniteBarrier as Barrier
        from lightning_sm._lightning import NAMESPACES, compat_strategies
        namespace = next(entry for entry in NAMESPACES if entry.name == "{namespace.name}")
        for _ in range(2):
            compat_strategies.replace_infinite_barrier(namespace)
        with Barrier() as barrier:
            say("no group", barrier.group is None)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with Barrier() as barrier:
            say("gloo", barrier.group is None)
        dist.get_backend = lambda: "smddp"
        with Barrier() as barrier:
            say("smddp", barrier.group is None, barrier.barrier is dist.barrier)
        dist.destroy_process_group()
        """
    )
    assert said == [["no group", True], ["gloo", False], ["smddp", True, True]]
