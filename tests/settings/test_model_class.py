import pytest

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.run import find_model_class


def named(container, value):
    container.hyperparameters(config=None, model=value)
    return find_model_class([], TrainingJob.resolve())


@pytest.mark.parametrize("value", ["tiny_model.TinyModel", {"class_path": "tiny_model.TinyModel", "lr": 1}])
def test_by_its_full_name(container, value):
    assert named(container, value).__name__ == "TinyModel"


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
    assert named(container, value) is None


def test_from_config_files_hyperparameters_and_words(container):
    job = TrainingJob.resolve()
    assert find_model_class([], job).__name__ == "TinyModel"
    assert find_model_class(["--model", "tiny_data.TinyData"], job).__name__ == "TinyData"
    container.leave()
    assert find_model_class(["fit", "--config", "config.yaml"], TrainingJob.resolve()).__name__ == "TinyModel"


@pytest.mark.parametrize("words", [["fit", "--config", "missing.yaml"], ["fit", "--config"]])
def test_faults_are_left_to_the_parser(container, words):
    assert find_model_class(words, TrainingJob()) is None
