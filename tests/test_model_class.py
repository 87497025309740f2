import pytest

from lightning_sm._config.classes import find_model_class, named_settings
from lightning_sm._config.settings import Settings
from lightning_sm._sagemaker.job import TrainingJob


def named(value):
    return find_model_class(Settings.collect(given={"model": value}))


@pytest.mark.parametrize("value", ["tiny_model.TinyModel", {"class_path": "tiny_model.TinyModel", "lr": 1}])
def test_by_its_full_name(container, value):
    assert named(value).__name__ == "TinyModel"


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "TinyModel",
        "missing.Model",
        "tiny_model.Missing",
        "tiny_model.torch",
        ".x",
        "..",
        "a b.c",
        "",
        {"lr": 1},
    ],
)
def test_what_is_no_class_is_the_parsers_business(container, value):
    assert named(value) is None


def test_from_config_files_hyperparameters_and_words(container):
    job = TrainingJob.resolve()
    assert named_settings([], job).get("model.class_path") == "tiny_model.TinyModel"
    assert named_settings(["--model", "tiny_model.Other"], job).get("model") == "tiny_model.Other"
    container.leave()
    assert named_settings(["fit", "--config", "config.yaml"], TrainingJob.resolve()).get("data.class_path")


@pytest.mark.parametrize("words", [["fit", "--config", "missing.yaml"], ["fit", "--config"]])
def test_faults_are_left_to_the_parser(container, words):
    assert named_settings(words, TrainingJob()) == Settings()
