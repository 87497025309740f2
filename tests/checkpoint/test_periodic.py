import os
import pickle
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._checkpoint import periodic
from lightning_sm._checkpoint.periodic import (
    ThrottledTimeTrigger,
    keep_those_of_others,
    periodic_checkpoints,
    save_interval,
)
from lightning_sm._lightning import Namespace, collectives
from lightning_sm._lightning.compat import keep_newest, last_needs_best
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

PL = Namespace("pytorch_lightning")
ModelCheckpoint = PL.module("callbacks").ModelCheckpoint
BY_EPOCH, BY_TIME = "last", "resume-{epoch}-{step}"


def added(*present, directory="/opt/ml/checkpoints", seconds=600):
    return [callback.filename for callback in periodic_checkpoints(present, directory, seconds, PL)]


def here(**arguments):
    return ModelCheckpoint(dirpath="/opt/ml/checkpoints", **arguments)


def test_what_is_added_to_nothing():
    by_epoch, by_time = periodic_checkpoints([], "/opt/ml/checkpoints", 90, PL)
    assert [callback.filename for callback in (by_epoch, by_time)] == [BY_EPOCH, BY_TIME]
    assert by_time._train_time_interval == timedelta(seconds=90)
    assert by_time._every_n_epochs == 0
    assert type(by_epoch) is type(by_time) is ModelCheckpoint
    assert by_epoch.state_key != by_time.state_key


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [BY_TIME]),
        ({"save_top_k": -1}, [BY_TIME]),
        ({"every_n_epochs": 5}, [BY_EPOCH, BY_TIME]),
        ({"save_on_train_epoch_end": False}, [BY_EPOCH, BY_TIME]),
        ({"save_weights_only": True}, [BY_EPOCH, BY_TIME]),
        ({"save_top_k": 0}, [BY_EPOCH, BY_TIME]),
        ({"monitor": "val_loss"}, [BY_EPOCH, BY_TIME]),
        ({"every_n_train_steps": 100}, [BY_EPOCH]),
        ({"train_time_interval": timedelta(hours=1)}, [BY_EPOCH]),
        ({"monitor": "step", "mode": "max", "every_n_train_steps": 100}, [BY_EPOCH]),
        ({"monitor": "step", "every_n_train_steps": 100}, [BY_EPOCH, BY_TIME]),
        ({"monitor": "val_loss", "every_n_train_steps": 100}, [BY_EPOCH, BY_TIME]),
        ({"filename": "last", "save_weights_only": True}, ["resume-last", BY_TIME]),
    ],
    ids=str,
)
def test_what_is_added_to_what_is_there(arguments, expected):
    assert added(here(**arguments)) == expected


@pytest.mark.parametrize(
    ("below", "arguments", "expected"),
    [
        ("exp/run1", {}, [BY_TIME]),
        ("", {"filename": "exp/run1/{epoch}"}, [BY_TIME]),
        (".exp", {}, [BY_EPOCH, BY_TIME]),
        ("exp.ckpt", {}, [BY_EPOCH, BY_TIME]),
        ("", {"filename": ".{epoch}"}, [BY_EPOCH, BY_TIME]),
        ("../elsewhere", {}, [BY_EPOCH, BY_TIME]),
    ],
)
def test_only_what_a_restart_finds_counts(below, arguments, expected):
    assert added(ModelCheckpoint(dirpath=f"/opt/ml/checkpoints/{below}", **arguments)) == expected


def test_the_last_one_of_a_callback_with_a_metric_counts_where_each_epoch_has_one():
    expected = ["resume-last", BY_TIME] if last_needs_best(PL) else [BY_TIME]
    assert added(here(monitor="val_loss", save_last=True)) == expected


def test_a_folder_that_keeps_its_name_is_no_regular_one(monkeypatch):
    monkeypatch.setattr(periodic, "last_needs_best", lambda namespace: False)
    present = [here(monitor="val_loss", save_last=True)]
    of_files = periodic_checkpoints(present, "/opt/ml/checkpoints", 600, PL)
    of_folders = periodic_checkpoints(present, "/opt/ml/checkpoints", 600, PL, folders=True)
    assert [callback.filename for callback in of_files] == [BY_TIME]
    assert [callback.filename for callback in of_folders] == ["resume-last", BY_TIME]


@pytest.mark.parametrize("dirpath", ["/elsewhere", "/opt/ml/checkpoints2", "memory://bucket/x", None])
def test_what_is_saved_elsewhere_does_not_count(dirpath):
    assert added(ModelCheckpoint(dirpath=dirpath)) == [BY_EPOCH, BY_TIME]
    assert added(ModelCheckpoint(dirpath="/opt/ml/checkpoints/below")) == [BY_TIME]


def test_several_together():
    assert added(here(), here(every_n_train_steps=10), object()) == []


def test_saved_states_never_bear_one_name():
    everything = [here(mode="max", save_weights_only=True)]
    everything.append(here(train_time_interval=timedelta(seconds=600), save_weights_only=True, **keep_newest(PL)))
    everything += periodic_checkpoints(everything, "/opt/ml/checkpoints", 600, PL)
    assert len({callback.state_key for callback in everything}) == len(everything) == 4


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90s", 90)])
def test_the_interval(text, seconds):
    assert save_interval(text) == seconds


def test_a_bad_interval():
    with pytest.raises(CheckpointError, match=r"sagemaker\.save_every: '0s' is not a duration.* HINT: Write "):
        save_interval("0s")


def fit(directory, *present, model=None, seconds=600.0, epochs=3, callbacks=(), **arguments):
    own = periodic_checkpoints(present, str(directory), seconds, PL)
    trainer = PL.module().Trainer(
        max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=1, default_root_dir=str(directory), callbacks=[*callbacks, *present, *own], **arguments,
    )  # fmt: skip
    trainer.fit(model or tiny_model(PL.module()), loader(), loader())
    return trainer


def steps(directory, pattern):
    return sorted(torch.load(str(path))["global_step"] for path in directory.glob(pattern))


class Watch(PL.module("callbacks").Callback):
    """What is there at the end of each batch and of each epoch, after everything was saved for it."""

    def __init__(self, directory):
        self.directory = directory
        self.seen = []

    def on_train_batch_start(self, trainer, *_):
        self.seen.append(sorted(os.listdir(self.directory)) if self.directory.exists() else [])


def test_one_file_at_the_end_of_each_epoch(tmp_path):
    watch = Watch(tmp_path / "c")
    trainer = fit(tmp_path / "c", callbacks=[watch])
    assert watch.seen == [[]] * 8 + [watch.seen[8]] * 8 + [watch.seen[16]] * 8
    assert all(len(names) == 1 and names[0].startswith("last") for names in watch.seen[8:])
    (path,) = (tmp_path / "c").iterdir()
    assert not path.is_symlink()
    assert steps(tmp_path / "c", "*.ckpt") == [24]
    assert trainer.checkpoint_callback.best_model_path == str(path)
    trainer.test(ckpt_path="best", dataloaders=loader(), verbose=False)


def test_the_newest_two_by_time(tmp_path):
    trainer = fit(tmp_path / "c", seconds=1e-6, epochs=2)
    kept = 2 if "save_top_k" in keep_newest(PL) else 1
    assert steps(tmp_path / "c", "resume-*.ckpt") == [15, 16][-kept:]
    assert len(steps(tmp_path / "c", "last*.ckpt")) == 1
    assert os.path.basename(trainer.checkpoint_callback.best_model_path).startswith("last")


def test_nothing_by_time_before_it_is_time(tmp_path):
    fit(tmp_path / "c", epochs=1)
    assert steps(tmp_path / "c", "resume-*.ckpt") == []


def test_the_best_of_the_project_are_left_alone(tmp_path):
    def best():
        return ModelCheckpoint(dirpath=str(tmp_path / "c"), monitor="val_loss", save_top_k=2, filename="best-{epoch}")

    first = best()
    alone = PL.module().Trainer(
        max_epochs=4, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1,
        callbacks=[first],
    )  # fmt: skip
    alone.fit(tiny_model(PL.module()), loader(), loader())
    names = {os.path.basename(path): float(score) for path, score in first.best_k_models.items()}
    assert len(names) == 2
    assert set(os.listdir(tmp_path / "c")) == set(names)
    for name in names:
        os.unlink(tmp_path / "c" / name)
    second = best()
    fit(tmp_path / "c", second, seconds=1e-6, epochs=4)
    assert {os.path.basename(path): float(score) for path, score in second.best_k_models.items()} == names
    assert {path.name for path in (tmp_path / "c").glob("best*")} == set(names)
    assert len(list((tmp_path / "c").glob("last*.ckpt"))) == 1


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_link_becomes_a_file(tmp_path, save_last):
    if save_last == "link" and PL.version < (2, 2):
        pytest.skip("this Lightning has no such setting")
    callback = ModelCheckpoint(dirpath=str(tmp_path), save_last=save_last)
    with log_lines() as lines:
        fit(tmp_path, callback, epochs=2)
    assert len(lines) == (1 if save_last == "link" else 0)
    assert not any(path.is_symlink() for path in tmp_path.iterdir())
    assert steps(tmp_path, "last.ckpt") == [16]


def test_by_time_under_manual_optimization(tmp_path):
    model = tiny_model(PL.module())

    class Manual(type(model)):
        automatic_optimization = False

        def training_step(self, batch, batch_index):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self._loss(batch))
            optimizer.step()

    model.__class__ = Manual
    model.automatic_optimization = False
    fit(tmp_path, model=model, seconds=1e-6, epochs=1, callbacks=[callback_class(PL, "SafeSaves")()])
    kept = 2 if "save_top_k" in keep_newest(PL) else 1
    assert steps(tmp_path, "resume-*.ckpt") == [7, 8][-kept:]


class Checkpoint:
    _train_time_interval = timedelta(seconds=10)

    def __init__(self):
        self._last_time_checked = 0.0
        self.called = []

    def on_train_batch_end(self, trainer, pl_module, batch):
        self.called.append(batch)
        self._last_time_checked = vars(periodic)["time"].monotonic()


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=0.0)
    now.monotonic = lambda: now.now
    monkeypatch.setattr(periodic, "time", now)
    return now


def test_one_process_saves_at_the_batch_after_which_it_is_time(clock):
    checkpoint = Checkpoint()
    save = ThrottledTimeTrigger(checkpoint)
    for batch in range(50):
        clock.now = float(batch)
        save(SimpleNamespace(world_size=1, is_global_zero=True), None, batch)
    assert checkpoint.called == [10, 20, 30, 40]


def test_the_first_rank_decides_for_all_and_they_seldom_ask(clock, monkeypatch):
    checkpoints = [Checkpoint(), Checkpoint()]
    saves = [ThrottledTimeTrigger(checkpoint) for checkpoint in checkpoints]
    asked = []

    def sums(trainer, values):
        # Rank 0 is called first, and says what the other one hears.
        if trainer.is_global_zero:
            asked.append([float(value) for value in values])
        else:
            assert list(values) == [False, 0]
        return asked[-1]

    monkeypatch.setattr(collectives, "sums", sums)
    for batch in range(300):
        clock.now = 0.1 * batch
        for rank, save in enumerate(saves):
            # Its own clock would have the other rank save all the time.
            checkpoints[1]._last_time_checked = -100.0
            save(SimpleNamespace(world_size=2, is_global_zero=rank == 0), None, batch)
    assert checkpoints[0].called == checkpoints[1].called
    assert 1 <= len(checkpoints[0].called) <= 3
    assert len(asked) < 30


def test_it_goes_with_the_callback_to_another_process(tmp_path):
    by_time = periodic_checkpoints([], str(tmp_path), 60.0, Namespace("pytorch_lightning"))[1]
    there = pickle.loads(pickle.dumps(by_time))
    assert there.on_train_batch_end.checkpoint is there


PL = Namespace("pytorch_lightning")


def fit_with_safe_saves(directory, epochs, path=None):
    own = periodic_checkpoints([], str(directory), 1e-6, PL)
    trainer = PL.module().Trainer(
        max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=1, callbacks=[callback_class(PL, "SafeSaves")(), *own],
    )  # fmt: skip
    trainer.fit(tiny_model(PL.module()), loader(), loader(), ckpt_path=path)


def test_interruptions_do_not_fill_the_disk(tmp_path):
    fit_with_safe_saves(tmp_path, 1)
    (tmp_path / "resume-epoch=7-step=900.ckpt").write_text("broken, and newer than all")
    (tmp_path / "resume-mine.ckpt").write_text("not ours")
    for epochs in (2, 3, 4):
        newest = max((path for path in tmp_path.glob("resume-epoch=[0-6]*")), key=os.path.getmtime)
        fit_with_safe_saves(tmp_path, epochs, str(newest))
    assert [path.name for path in tmp_path.glob("last*.ckpt")] == ["last.ckpt"]
    assert int(torch.load(str(tmp_path / "last.ckpt"))["epoch"]) == (3 if PL.version >= (1, 6) else 4)  # the next one
    assert len(list(tmp_path.glob("resume-epoch=[0-6]*"))) <= 3  # two, and the one that the last run went on from
    assert (tmp_path / "resume-epoch=7-step=900.ckpt").exists()
    assert (tmp_path / "resume-mine.ckpt").exists()


@pytest.mark.parametrize(
    ("dirpath", "monitor", "best", "kept"),
    [
        ("s3://b/new", None, "s3://b/old/last.ckpt", ""),
        ("/opt/new", None, "s3://b/old/last.ckpt", ""),
        ("s3://b/new/", None, "s3://b/new/last.ckpt", "s3://b/new/last.ckpt"),
        ("/opt/new", None, "/opt/new/a/last.ckpt", "/opt/new/a/last.ckpt"),
        ("/opt/new", "val_loss", "s3://b/old/best.ckpt", "s3://b/old/best.ckpt"),
    ],
)
def test_a_checkpoint_of_another_directory_is_not_superseded(dirpath, monitor, best, kept):
    callback = SimpleNamespace(dirpath=dirpath, monitor=monitor, best_model_path=best)
    keep_those_of_others(SimpleNamespace(checkpoint_callbacks=[callback]))
    assert callback.best_model_path == kept


def test_a_run_that_starts_afresh_leaves_the_older_one(tmp_path):
    for _ in range(2):
        fit_with_safe_saves(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.glob("last*.ckpt")) == ["last-v1.ckpt", "last.ckpt"]
