"""A save of the series shares the large files of a checkpoint that a callback of the project has just saved."""

import os
from pathlib import Path

import pytest

from lightning_sm._lightning.restart import resumes_within_epochs
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.series import LIBRARY, continue_from, outcome, saves_of, shares, train_fit, train_keeping_all
from tests.helpers.setups import Setup, Size, in_order, net, shuffled

pytestmark = pytest.mark.skipif(not resumes_within_epochs(NAMESPACE), reason="files are shared from Lightning 2.5 on")

SIZE = Size(epochs=2, batches=4)


def series_of(directory):
    (series,) = Path(directory).glob("*/fit-0")
    return series


def file_of(callback, record):
    """The checkpoint of a callback that was saved at the step of a record."""
    (path,) = Path(callback.dirpath).glob(f"*step={record['step']}.ckpt")
    return path


# With a plateau scheduler, whose learning rate changes between the two moments.
@pytest.mark.parametrize("name", ["plateau_by_epoch", "adam_and_clipping"])
def test_a_shared_save_continues_as_any_other(tmp_path, monkeypatch, name):
    keep_all(monkeypatch, name)
    whole = train_keeping_all(name, SIZE, tmp_path / "whole")
    shared = [record for record in saves_of(tmp_path / "whole") if shares(record)]
    assert [record["kind"] for record in shared] == ["epoch", "end"]
    expected = outcome(whole)
    for number, record in enumerate(shared):
        series = series_of(tmp_path / "whole")
        own, others = series / record["name"], file_of(whole.checkpoint_callback, record)
        assert own.stat().st_ino == others.stat().st_ino
        assert (series / record["name"]).with_suffix(".rest").stat().st_size < 0.9 * own.stat().st_size + 60_000
        others.unlink()  # as a ModelCheckpoint that keeps the best does
        resumed = continue_from(record, tmp_path / "whole", tmp_path / f"copy-{number}", name, SIZE)
        assert outcome(resumed) == expected
        if record["kind"] == "epoch":  # as the ckpt_path of another job
            given = str(own)
            other = train_fit(name, SIZE, tmp_path / "other", save_every=600.0, resumed=True, ckpt_path=given)
            assert outcome(other) == expected


def keep_all(monkeypatch, name):
    made = LIBRARY[name]

    def keeping(pl, size):
        found = made(pl, size)
        checkpoint = pl.callbacks.ModelCheckpoint(save_top_k=-1, filename="{step}")
        found.arguments["callbacks"] = [*found.arguments.get("callbacks", ()), checkpoint]
        return found

    monkeypatch.setitem(LIBRARY, name, keeping)


def test_a_file_system_without_hard_links(tmp_path, monkeypatch, caplog):
    def link(source, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr("lightning_sm._resume.shared._has_said", False)
    with caplog.at_level("INFO"):
        train_fit("plain", SIZE, tmp_path)
    assert [shares(record) for record in saves_of(tmp_path)] == [False, False]
    assert caplog.text.count("The weights are written twice") == 1
    assert "save_weights_only" in caplog.text


def shrink_weights(trainer):
    for parameter in trainer.lightning_module.parameters():
        parameter.data.mul_(0.5)


def forget_momentum(trainer):
    trainer.optimizers[0].state.clear()


@pytest.mark.parametrize("change", [shrink_weights, forget_momentum], ids=lambda change: change.__name__)
def test_what_changes_in_between_is_not_shared(tmp_path, monkeypatch, change):
    class Changes(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            change(trainer)

    def changing(pl, size):
        at_validation = pl.callbacks.ModelCheckpoint(monitor="val_loss", save_on_train_epoch_end=False, save_top_k=-1)
        return Setup(net(pl)(), shuffled(size), in_order(), {"callbacks": [Changes(), at_validation]})

    monkeypatch.setitem(LIBRARY, "changing", changing)
    train_keeping_all("changing", SIZE, tmp_path)
    records = saves_of(tmp_path)
    assert {record["kind"] for record in records} == {"batch", "validation", "epoch", "end"}
    assert not [record["name"] for record in records if shares(record)]
