import datetime

import pytest
import pytorch_lightning as pl

from lightning_sm._checkpoint.candidates import Candidate
from lightning_sm._checkpoint.finished import Finished, read_finished, remove_finished, training_limits, write_finished
from lightning_sm._lightning import Namespace

PL = Namespace("pytorch_lightning")
END = Finished("last.ckpt", 9, 500, {"max_epochs": 10, "max_steps": -1})


def test_it_is_read_as_it_was_written(tmp_path):
    write_finished(str(tmp_path), END)
    assert read_finished(str(tmp_path)) == END
    assert [path.name for path in tmp_path.iterdir()] == ["finished.json"]
    remove_finished(str(tmp_path))
    assert read_finished(str(tmp_path)) is None
    remove_finished(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"checkpoint": "last.ckpt"}', '{"other": 1}'])
def test_one_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "finished.json").write_text(text)
    assert read_finished(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("name", "step", "max_epochs", "is_end"),
    [
        ("last.ckpt", 500, 10, True),
        ("last.ckpt", 500, 20, False),
        ("last.ckpt", 400, 10, False),
        ("other.ckpt", 500, 10, False),
    ],
)
def test_of_which_job_it_is_the_end(name, step, max_epochs, is_end):
    limits = {"max_epochs": max_epochs, "max_steps": -1}
    assert END.matches(Candidate(name, global_step=step), limits) is is_end


def a_trainer(*callbacks, **arguments):
    return pl.Trainer(logger=False, enable_checkpointing=False, callbacks=list(callbacks), **arguments)


@pytest.mark.parametrize(
    "other",
    [
        lambda: a_trainer(max_epochs=6),
        lambda: a_trainer(max_epochs=5, max_steps=100),
        lambda: a_trainer(max_epochs=5, min_steps=10),
        lambda: a_trainer(max_epochs=5, max_time="00:01:00:00"),
        lambda: a_trainer(pl.callbacks.EarlyStopping("loss"), max_epochs=5),
    ],
)
def test_each_limit_counts(tmp_path, other):
    limits = training_limits(PL, a_trainer(max_epochs=5))
    assert limits == training_limits(PL, a_trainer(max_epochs=5))
    assert limits != training_limits(PL, other())


def test_what_stops_early_counts(tmp_path):
    several = [
        a_trainer(pl.callbacks.EarlyStopping("loss", patience=2)),
        a_trainer(pl.callbacks.EarlyStopping("loss", patience=3)),
        a_trainer(pl.callbacks.Timer(datetime.timedelta(minutes=1))),
        a_trainer(pl.callbacks.Timer(datetime.timedelta(minutes=2))),
    ]
    limits = [training_limits(PL, trainer) for trainer in several]
    assert all(first != second for first, second in zip(limits, limits[1:]))
    for each in limits:
        write_finished(str(tmp_path), Finished("last.ckpt", 0, 1, each))
        assert read_finished(str(tmp_path)).matches(Candidate("last.ckpt", global_step=1), each)
