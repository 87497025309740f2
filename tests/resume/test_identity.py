import pytest

from lightning_sm import Hyperparameters, TrainingJob
from lightning_sm._checkpoint.identity import JobIdentity

CONFIG = {
    "model": {"class_path": "Net", "init_args": {"lr": 0.1, "sizes": [1, 2]}},
    "data": {"data_dir": "/tmp/one/input/data/training"},
    "trainer": {"max_epochs": 3, "devices": 2, "precision": 32, "callbacks": [{"init_args": {"patience": 3}}]},
    "sagemaker": {"resume": "auto"},
    "seed_everything": 5,
}


def identity(config=CONFIG, name=None, base="/tmp/one", **hyperparameters):
    job = TrainingJob(in_container=True, name=name, base_dir=base, hyperparameters=Hyperparameters(hyperparameters))
    return JobIdentity.of(job, config)


def changed(key, value):
    group, name = key.split(".") if "." in key else (key, None)
    return {**CONFIG, group: value if name is None else {**CONFIG[group], name: value}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.max_epochs", 9),
        ("trainer.devices", 4),
        ("trainer.num_nodes", 2),
        ("trainer.logger", False),
        ("sagemaker.resume", "always"),
        ("seed_everything", 6),
        ("trainer.callbacks", object()),
    ],
)
def test_what_a_restart_may_change(key, value):
    assert set(identity(changed(key, value)).differences(identity())) <= {"trainer.callbacks"}


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model", {"class_path": "Net", "init_args": {"lr": 0.5, "sizes": [1, 2]}}, "model.lr"),
        ("data.data_dir", "/mnt", "data.data_dir"),
        ("trainer.precision", 16, "trainer.precision"),
        ("trainer.callbacks", [{"init_args": {"patience": 4}}], "trainer.callbacks"),
    ],
)
def test_what_makes_another_job(key, value, named):
    other = identity(changed(key, value))
    assert other.differences(identity()) == (named,)
    assert not other.is_same_job(identity())


def test_hyperparameters_count_too():
    assert identity({}, epochs=3).differences(identity({}, epochs=4)) == ("epochs",)
    assert identity({}, seed_everything=3).differences(identity({}, seed_everything=4)) == ("seed",)
    assert identity(**{"trainer.max_epochs": 3}) == identity(**{"trainer.max_epochs": 4})


def test_the_base_directory_does_not_count():
    config = changed("data.data_dir", "/tmp/two/input/data/training")
    assert identity(config, base="/tmp/two") == identity()


def test_a_name_decides():
    assert identity(name="a").is_same_job(identity({}, name="a"))
    assert not identity(name="a").is_same_job(identity(name="b"))
    assert identity(name="a").is_same_job(identity())


def test_it_is_plain_and_tells_no_values():
    plain = identity(name="a", key="secret").as_plain()
    assert JobIdentity.from_plain(plain) == identity(name="a", key="secret")
    assert "secret" not in str(plain)
    for other in (None, 3, {}, {"job_name": 3, "settings": {}}, {"job_name": None, "settings": []}):
        assert JobIdentity.from_plain(other) is None
