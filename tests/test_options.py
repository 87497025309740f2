import inspect
from dataclasses import fields

import lightning_sm
from lightning_sm._options import SageMakerOptions


def test_defaults_decide_nothing():
    options = SageMakerOptions()
    assert options == SageMakerOptions(channels={}, export=True, resume="auto", save_every="10m")
    assert options.channels is not SageMakerOptions().channels
    assert lightning_sm.SageMakerOptions is SageMakerOptions


def test_every_option_is_explained():
    for field in fields(SageMakerOptions):
        assert f"    {field.name}: " in inspect.getdoc(SageMakerOptions)
