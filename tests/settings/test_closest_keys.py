import argparse

import pytest

from lightning_sm._settings.classes import closest_keys
from lightning_sm._settings.line import leaves


class Net:
    def __init__(self, depth=1, **kwargs):
        pass


class Model:
    def __init__(self, learning_rate=0.1, net=None, table=None):
        pass


CLASSES = {"m.Model": Model, "m.Net": Net}


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    for name in ("trainer.max_epochs", "trainer.logger", "trainer.logger.help", "model", "sagemaker.channels"):
        parser.add_argument(f"--{name}", dest=name)
    return parser


def hint(parser, **values):
    given = dict(leaves(values))
    return closest_keys(parser, given, dict.fromkeys(given, "a hyperparameter"), CLASSES.get)


def test_an_abbreviation_means_what_it_begins(parser):
    parser.add_argument("--trainer.max_steps", dest="trainer.max_steps")
    assert "did you mean 'trainer.max_epochs'?" in hint(parser, trainer={"max_ep": 1})
    assert "did you mean 'sagemaker.channels'?" in hint(parser, sagemaker={"c": 1})


def test_each_unknown_key_gets_its_line(parser):
    found = hint(parser, trainer={"max_epoch": 1}, model={"class_path": "m.Model", "init_args": {"learning_rat": 1}})
    assert found == (
        "'trainer.max_epoch' (by a hyperparameter) is no key; did you mean 'trainer.max_epochs'? "
        "'model.learning_rat' (by a hyperparameter) is no key; did you mean 'model.learning_rate'?"
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"trainer": {"max_epochs": 1, "logger": {"class_path": "Unknown", "init_args": {"save_dir": "x"}}}},
        {"sagemaker": {"channels": {"training": "data.x"}}},
        {"model": {"class_path": "m.Model", "init_args": {"table": {"any": {"thing": 1}}}}},
        {"model": {"class_path": "m.Unknown", "init_args": {"any": 1}}},
        {"zzzzzz": 1},
    ],
)
def test_nothing_to_say(parser, values):
    assert hint(parser, **values) is None


def test_below_a_class_below_a_class(parser):
    net = {"class_path": "m.Net", "init_args": {"dept": 2}}
    found = hint(parser, model={"class_path": "m.Model", "init_args": {"net": net}})
    assert "did you mean 'model.net.depth'?" in found


def test_a_group_is_not_what_somebody_meant(parser):
    assert "did you mean 'model'" not in (hint(parser, model={"class_path": "m.Model", "init_args": {"x": 1}}) or "")


@pytest.mark.parametrize(
    ("key", "close"),
    [
        ("lr", "model.lr"),
        ("learning_rate", "model.lr"),
        ("learning-rate", "model.lr"),
        ("epochs", "trainer.max_epochs"),
        ("data_dir", "data.data_dir"),
        ("model_dir", "sagemaker.model_dir"),
        ("batch_size", "model.batch_size"),
        ("dat.batch_size", "data.batch_size"),
        ("gpus", "trainer.devices"),
        ("max-epochs", "trainer.max_epochs"),
        ("seed", "seed_everything"),
    ],
)
def test_an_equal_last_component_comes_first(parser, key, close):
    for name in ("data.data_dir", "data.val_dir", "data.batch_size", "lr_scheduler", "trainer.min_epochs", "model.lr",
                 "trainer.check_val_every_n_epoch", "sagemaker.model_dir", "trainer.devices", "model.batch_size",
                 "seed_everything"):  # fmt: skip
        parser.add_argument(f"--{name}", dest=name)
    assert f"did you mean {close!r}?" in hint(parser, **{key: 1})
