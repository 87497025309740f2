import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity


@pytest.fixture
def program(monkeypatch, in_environ):
    """Return a function that gives the identity of a program with these arguments, hyperparameters and config."""

    def of(arguments="", config=None, main=None, **hyperparameters):
        main = main or SimpleNamespace(__file__="/opt/ml/code/train.py", __spec__=None)
        monkeypatch.setitem(sys.modules, "__main__", main)
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments.split()])
        job = SimpleNamespace(
            name="job-1", base_dir="/tmp/rehearsal", hyperparameters=SimpleNamespace(values=hyperparameters)
        )
        return ProgramIdentity.of(job, config)

    return of


@pytest.mark.parametrize("words", ["--lr 0.2", "fold-2", "--max_epochs 5"])
def test_all_words_of_a_program_count(program, words):
    assert program(f"fit {words}").series != program("fit").series


def test_hyperparameters_count_but_limits(program):
    plain = program(lr=0.1)
    assert program(lr=0.1, max_epochs=5, sagemaker={"resume": "never"}, **{"trainer.devices": 2}) == plain
    assert program(lr=0.1, **{"max-epochs": 5}) == plain
    assert program(lr=0.1, trainer={"max_epochs": 5, "logger": {"class_path": "CSVLogger"}}) == plain
    for more in ({"lr": 0.2}, {"seed_everything": 1}, {"seed": 1}, {"trainer": {"precision": 16}}):
        assert program(**{"lr": 0.1, **more}).series != plain.series, more
    assert program(lr=0.2).differences(plain) == ("lr",)


def test_of_a_cli_the_resolved_config_counts_and_not_the_words(program):
    config = {"model": {"class_path": "a.Net", "init_args": {"lr": 0.1}}, "trainer": {"max_epochs": 3}}
    plain = program("fit --config a.yaml", config)
    longer = {**config, "trainer": {"max_epochs": 9}, "data": object()}
    assert program("fit --model.lr 0.1", longer) == plain
    other = {**config, "model": {"class_path": "a.Net", "init_args": {"lr": 0.2}}}
    assert program("fit", other).differences(plain) == ("model.lr",)


def test_scripts_of_one_name_in_two_folders_are_two_programs(program):
    """As the stages of a job that are run one after another: the second one is no restart of the first."""

    def at(path):
        return program("--lr 1", main=SimpleNamespace(__file__=path, __spec__=None))

    names = ("pretrain/train.py", "finetune/train.py", "訓練.py", "評価.py")
    first, *others = (at(f"/opt/ml/code/{name}") for name in names)
    assert len({each.series for each in (first, *others)}) == 4
    assert first.differences(others[0]) == ("path of the script",)
    assert at("/tmp/rehearsal/code/pretrain/train.py") == first


def test_a_rehearsal_in_another_directory_is_the_same_program(program):
    assert program(data="/tmp/rehearsal/input/data") == program(data="/opt/ml/input/data")


@pytest.mark.parametrize(
    ("main", "name"),
    [
        (SimpleNamespace(__file__="/code/my train!.py", __spec__=None), "my_train"),
        (SimpleNamespace(__file__="/code/p/fit.py", __spec__=SimpleNamespace(name="p.fit")), "p.fit"),
        (SimpleNamespace(__file__="/code/p/__main__.py", __spec__=SimpleNamespace(name="p.__main__")), "p"),
        (SimpleNamespace(__file__="/code/訓練.py", __spec__=None), "program"),
        (SimpleNamespace(__spec__=None), "interactive"),
    ],
)
def test_the_series_is_named_after_the_program(program, main, name):
    series = program("--lr 1", main=main).series
    assert series[:-7] == name
    assert len(series) - len(name) == 7
    assert program("--lr 1", main=main).series == series


class Model(torch.nn.Module):
    def __init__(self, **values):
        super().__init__()
        self.hparams_initial = values


@pytest.mark.parametrize("value", [2, 0.5, True, None, [1, 2], (1.0,), {"deep": 3}])
def test_numbers_of_a_model_must_be_the_same(value):
    saved = asdict(ModelIdentity.of(Model(lr=0.1)))
    name = "lr.deep" if isinstance(value, dict) else "lr"
    problem = ModelIdentity.of(Model(lr=value)).problem(saved)
    assert problem.startswith("its hyperparameters differ in lr")
    assert name in problem
    assert ModelIdentity.of(Model()).problem(saved) == "its hyperparameters differ in lr"


def test_texts_of_a_model_may_differ_and_objects_do_not_count():
    saved = asdict(ModelIdentity.of(Model(lr=0.1, path="/tmp/a", names=["a"], net=object())))
    now = ModelIdentity.of(Model(lr=0.1, path="/tmp/b", names=["b"], net=object()))
    assert now.problem(saved) is None
    assert now.differing_texts(saved) == ("names", "path")
    problem = ModelIdentity("other.Model").problem(saved)
    assert problem == f"it was one of {__name__}.Model, and is one of other.Model"


def test_numbers_in_attributes_of_a_model_that_saves_no_hyperparameters():
    def model(rate, **attributes):
        made = Model()
        made.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1), torch.nn.Dropout(rate))
        vars(made).update(attributes)
        return ModelIdentity.of(made)

    saved = asdict(model(0.2, lr=0.1, name="a", _calls=1))
    assert model(0.2, lr=0.1, name="b", _calls=2).differing_texts(saved) == ()
    other = model(0.3, lr=0.2, depth=2)
    assert other.problem(saved) is None
    assert other.differing_texts(saved) == ("Dropout.p", "depth", "lr")
