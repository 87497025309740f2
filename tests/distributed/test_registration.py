import pytest

import lightning_sm
from lightning_sm._distributed.smddp import register_strategies, smddp_strategy_class
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.compat_strategies import strategy_of


@pytest.fixture(params=installed_namespaces(), ids=lambda namespace: namespace.name)
def namespace(request):
    register_strategies(request.param)
    return request.param


def _trainer(namespace, name):
    return namespace.module().Trainer(
        accelerator="cpu", devices=1, strategy=name, logger=False, enable_checkpointing=False
    )


# Lightning lower-cases names, so any spelling reaches ours.
@pytest.mark.parametrize("name", ["smddp", "SMDDP"])
def test_name(namespace, name):
    assert type(strategy_of(_trainer(namespace, name))) is smddp_strategy_class(namespace)


@pytest.mark.parametrize("value", [True, False])
def test_names_with_find_unused_parameters(namespace, value):
    strategy = strategy_of(_trainer(namespace, f"smddp_find_unused_parameters_{str(value).lower()}"))
    assert type(strategy) is smddp_strategy_class(namespace)
    assert vars(strategy)["_ddp_kwargs"]["find_unused_parameters"] is value


def test_registering_twice_is_no_error(namespace):
    register_strategies(namespace)
    assert type(strategy_of(_trainer(namespace, "smddp"))) is smddp_strategy_class(namespace)


def test_lightnings_own_names_are_untouched(namespace):
    assert type(strategy_of(_trainer(namespace, "ddp"))) is smddp_strategy_class(namespace).__bases__[1]


def test_the_name_of_lightning_1_5_means_the_same_class():
    installed_namespaces()[-1].module()
    assert lightning_sm.SMDDPPlugin is lightning_sm.SMDDPStrategy
