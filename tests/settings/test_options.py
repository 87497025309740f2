import pytest

import lightning_sm
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm.errors import OptionError


@pytest.mark.parametrize("name", ["output_dir", "checkpoint_dir", "model_dir"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [("~/out", "/home/me/out"), ("out/~", "out/~"), ("s3://bucket/~", "s3://bucket/~"), (None, None)],
)
def test_directories_below_the_home(monkeypatch, name, given, expected):
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(SageMakerOptions(**{name: given}), name) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"save_evry": "5m"}, r"no option 'save_evry'\. HINT: Did you mean 'save_every'\? There are channels, "),
        ({1: 2}, "no option 1"),
        ("5m", r"sagemaker is '5m'\. HINT: Give a dict"),
        ({"channels": {"training": "data.data_dir"}}, "sagemaker.channels .* this is a script. HINT: Take lightning_"),
        ({"hyperparameters": {"lr": "model.lr"}}, "sagemaker.hyperparameters .* this is a script. HINT: Take light"),
    ],
)
def test_options_that_no_script_has(given, message):
    with pytest.raises(OptionError, match=message):
        lightning_sm.trainer_settings(sagemaker=given)
