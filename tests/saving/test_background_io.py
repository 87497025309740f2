import os
import threading

import pytest
import torch

from lightning_sm._checkpoint.async_io import background_checkpoint_io
from lightning_sm._checkpoint.atomic_io import atomic_checkpoint_io
from lightning_sm._lightning import Namespace
from lightning_sm.errors import CheckpointError
from tests.projects.container import log_lines
from tests.saving.test_atomic_io import readings

PL = Namespace("pytorch_lightning")


class Slow(PL.module("plugins").CheckpointIO):
    """Writes when it is allowed to, and notes what it did in which thread."""

    def __init__(self, may_write=True):
        self.allowed = threading.Event()
        if may_write:
            self.allowed.set()
        self.started = threading.Semaphore(0)
        self.done = []
        self.error = None
        self.is_torn_down = False

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.started.release()
        assert self.allowed.wait(60)
        if self.error is not None:
            raise self.error
        self.done.append(("save", path, int(checkpoint["step"])))

    def load_checkpoint(self, path, map_location=None):
        return {"done": list(self.done)}

    def remove_checkpoint(self, path):
        self.done.append(("remove", path))

    def teardown(self):
        self.is_torn_down = True


@pytest.fixture
def slow():
    return Slow(may_write=False)


@pytest.fixture
def background(slow):
    made = background_checkpoint_io(PL)(slow)
    made.start()
    yield made
    slow.allowed.set()
    slow.error = None
    made.finish()


def step(number):
    return {"step": torch.tensor(number)}


def test_a_save_returns_before_it_is_written_and_is_as_it_was(background, slow):
    checkpoint = step(1)
    background.save_checkpoint(checkpoint, "a.ckpt")
    checkpoint["step"].add_(1)
    assert slow.done == []
    assert background.is_being_saved("a.ckpt")
    assert not background.is_being_saved("b.ckpt")
    slow.allowed.set()
    background.finish()
    assert slow.done == [("save", "a.ckpt", 1)]
    assert not background.is_being_saved("a.ckpt")


def test_the_older_checkpoint_goes_after_the_newer_one_is_there(background, slow):
    background.save_checkpoint(step(2), "new.ckpt")
    background.remove_checkpoint("old.ckpt")
    assert slow.done == []
    slow.allowed.set()
    assert background.load_checkpoint("new.ckpt")["done"] == [("save", "new.ckpt", 2), ("remove", "old.ckpt")]
    background.remove_checkpoint("new.ckpt")
    assert slow.done[-1] == ("remove", "new.ckpt")  # nothing is waiting, so it is gone at once


def test_the_older_checkpoint_stays_if_the_newer_one_cannot_be_saved(background, slow):
    slow.error = CheckpointError("no room", hint="buy some")
    background.save_checkpoint(step(2), "new.ckpt")
    background.remove_checkpoint("old.ckpt")
    slow.allowed.set()
    with pytest.raises(CheckpointError, match="no room"):
        background.finish()
    assert slow.done == []
    background.finish()  # an error is raised once


@pytest.mark.parametrize("what", ["save", "load"])
def test_an_error_is_raised_by_what_comes_next(background, slow, what):
    slow.error = CheckpointError("no room", hint="buy some")
    slow.allowed.set()
    background.save_checkpoint(step(1), "a.ckpt")
    background._last.result()
    background.remove_checkpoint("old.ckpt")
    with pytest.raises(CheckpointError, match="no room"):
        background.save_checkpoint(step(2), "b.ckpt") if what == "save" else background.load_checkpoint("a.ckpt")
    assert slow.done == []
    slow.error = None
    background.save_checkpoint(step(3), "c.ckpt")
    background.finish()
    assert slow.done == [("save", "c.ckpt", 3)]


def test_a_third_save_waits_for_the_first(background, slow):
    background.save_checkpoint(step(1), "a.ckpt")
    background.save_checkpoint(step(2), "b.ckpt")
    third = threading.Thread(target=background.save_checkpoint, args=(step(3), "c.ckpt"))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    slow.allowed.set()
    third.join(60)
    background.finish()
    assert [number for _, _, number in slow.done] == [1, 2, 3]


def test_before_the_start_and_after_the_end_a_save_is_done_when_it_returns(background, slow):
    slow.allowed.set()
    background.save_checkpoint(step(1), "a.ckpt")
    background.finish()
    background.save_checkpoint(step(2), "b.ckpt")
    assert slow.done[-1] == ("save", "b.ckpt", 2)
    background.start()
    slow.allowed.clear()
    background.save_checkpoint(step(3), "c.ckpt")
    assert len(slow.done) == 2
    slow.allowed.set()
    background.teardown()
    assert len(slow.done) == 3
    assert slow.is_torn_down
    assert not [thread for thread in threading.enumerate() if "lightning-sm" in thread.name]


def test_what_cannot_be_copied_is_saved_while_training_waits(background, slow):
    slow.allowed.set()
    with log_lines() as lines:
        background.save_checkpoint({"step": torch.tensor(1), "lock": threading.Lock()}, "a.ckpt")
    assert slow.done == [("save", "a.ckpt", 1)]
    assert "saved while training waits" in lines[0]


def test_a_reader_never_sees_half_a_file_nor_an_empty_directory(tmp_path):
    saves = background_checkpoint_io(PL)(atomic_checkpoint_io(PL)(PL.module("plugins").TorchCheckpointIO()))
    weights, seen = torch.zeros(1 << 18), []
    saves.save_checkpoint({"weights": weights}, str(tmp_path / "step=0.ckpt"))

    def saving():
        saves.start()
        for number in range(1, 40):
            weights.fill_(number)
            saves.save_checkpoint({"weights": weights}, str(tmp_path / f"step={number}.ckpt"))
            saves.remove_checkpoint(str(tmp_path / f"step={number - 1}.ckpt"))
            weights.fill_(-1)
            seen.append(len(list(tmp_path.glob("*.ckpt"))))
        saves.finish()

    read = readings(tmp_path, saving)
    assert all(value >= 0 and value % (1 << 18) == 0 for value in read)
    assert min(seen) >= 1
    assert os.listdir(tmp_path) == ["step=39.ckpt"]
