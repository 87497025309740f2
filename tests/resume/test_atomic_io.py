import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from lightning_sm._lightning import Namespace
from lightning_sm._resume.atomic_io import atomic_checkpoint_io
from lightning_sm.errors import CheckpointError
from tests.helpers.processes import until
from tests.resume.job import forked

PL = Namespace("pytorch_lightning")
ATOMIC = atomic_checkpoint_io(PL)


class Other(PL.module("plugins").CheckpointIO):
    """A project's own CheckpointIO, which writes what it is told to."""

    own_attribute = "own"

    def __init__(self, save=None):
        self.save = save or (lambda checkpoint, path: torch.save(checkpoint, path))
        self.calls = []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.calls.append((str(path), storage_options))
        self.save(checkpoint, path)

    def load_checkpoint(self, path, map_location=None):
        return torch.load(path, map_location)

    def remove_checkpoint(self, path):
        os.unlink(path)


def with_other_ending(checkpoint, path):
    torch.save(checkpoint, Path(path).with_suffix(".pth"))


def with_notes(checkpoint, path):
    torch.save(checkpoint, path)
    Path(f"{path}.json").write_text(str(int(checkpoint["step"])))


def as_folder(checkpoint, path):
    os.mkdir(path)
    torch.save(checkpoint, os.path.join(path, "weights"))


@pytest.mark.parametrize(
    ("save", "names"),
    [
        (with_other_ending, ["a.pth"]),
        (with_notes, ["a.ckpt", "a.ckpt.json"]),
        (as_folder, ["a.ckpt"]),
    ],
)
def test_an_own_way_of_writing_decides_its_names(tmp_path, save, names):
    atomic = ATOMIC(Other(save))
    for step in (1, 2):
        atomic.save_checkpoint({"step": torch.tensor(step)}, str(tmp_path / "a.ckpt"))
    assert sorted(os.listdir(tmp_path)) == names
    file = tmp_path / "a.ckpt" / "weights" if save is as_folder else tmp_path / names[0]
    assert saved(file) == 2
    if save is with_notes:
        assert (tmp_path / "a.ckpt.json").read_text() == "2"


def test_an_own_way_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"Other\.save_checkpoint has returned without writing .*a\.ckpt"):
        ATOMIC(Other(lambda checkpoint, path: None)).save_checkpoint({}, str(tmp_path / "a.ckpt"))
    assert os.listdir(tmp_path) == []


@pytest.fixture(params=["Lightning's", "another"])
def atomic(request):
    return ATOMIC(PL.module("plugins").TorchCheckpointIO() if request.param == "Lightning's" else Other())


def saved(path):
    return int(torch.load(str(path))["step"])


def test_save_load_and_remove(atomic, tmp_path):
    path = str(tmp_path / "below" / "last.ckpt")
    for step in (1, 2):
        atomic.save_checkpoint({"step": torch.tensor(step)}, path)
        assert int(atomic.load_checkpoint(path)["step"]) == step
    assert os.listdir(tmp_path / "below") == ["last.ckpt"]
    atomic.remove_checkpoint(path)
    assert os.listdir(tmp_path / "below") == []


def test_an_error_of_the_checkpoint_itself_goes_on_as_it_is(atomic, tmp_path):
    with pytest.raises(Exception, match=r"[Pp]ickle|local object|lambda") as caught:
        atomic.save_checkpoint({"hyperparameter": lambda: None}, str(tmp_path / "last.ckpt"))
    assert not isinstance(caught.value, CheckpointError)
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room(tmp_path):
    """A limit on the size of a file stands for a full disk; torch's writer meets it within its C++."""
    atomic = ATOMIC(PL.module("plugins").TorchCheckpointIO())
    atomic.save_checkpoint({"step": torch.tensor(1)}, str(tmp_path / "last.ckpt"))

    def save():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        atomic.save_checkpoint({"step": torch.tensor(2)}, str(tmp_path / "small.ckpt"))
        with pytest.raises(CheckpointError, match=r"last\.ckpt could not be saved .*HINT: Check the free space"):
            atomic.save_checkpoint({"weights": torch.ones(1 << 20)}, str(tmp_path / "last.ckpt"))

    _, status = os.waitpid(forked(save), 0)
    assert status == 0
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "small.ckpt"]
    assert (saved(tmp_path / "last.ckpt"), saved(tmp_path / "small.ckpt")) == (1, 2)


def test_what_a_killed_run_left_behind_is_removed_once(lines, atomic, tmp_path):
    (tmp_path / ".last.ckpt.partial-00c0ffee00c0ffee").write_text("half")
    (tmp_path / ".folder.ckpt.partial-11c0ffee00c0ffee").mkdir()
    kept = {".hidden", "notes.partial-00c0ffee00c0ffee", "other.ckpt"}
    for name in kept:
        (tmp_path / name).write_text("kept")
    for path in tmp_path.iterdir():
        os.utime(path, (1e9, 1e9))  # long before this process
    kept |= {".best.ckpt.partial-33c0ffee00c0ffee", ".folder.ckpt.partial-44c0ffee00c0ffee"}
    (tmp_path / ".best.ckpt.partial-33c0ffee00c0ffee").write_text("of another process, which is saving")
    (tmp_path / ".folder.ckpt.partial-44c0ffee00c0ffee").mkdir()
    (tmp_path / ".folder.ckpt.partial-44c0ffee00c0ffee" / "shard").write_text("the same")
    os.utime(tmp_path / ".folder.ckpt.partial-44c0ffee00c0ffee", (1e9, 1e9))
    atomic.save_checkpoint({"step": torch.tensor(1)}, str(tmp_path / "last.ckpt"))
    (tmp_path / ".last.ckpt.partial-22c0ffee00c0ffee").write_text("not looked for again")
    os.utime(tmp_path / ".last.ckpt.partial-22c0ffee00c0ffee", (1e9, 1e9))
    atomic.save_checkpoint({"step": torch.tensor(2)}, str(tmp_path / "last.ckpt"))
    assert set(os.listdir(tmp_path)) == {*kept, "last.ckpt", ".last.ckpt.partial-22c0ffee00c0ffee"}
    assert len(lines) == 2
    assert all("incomplete checkpoint of an interrupted run" in line for line in lines)


def test_forked_processes_save_under_one_name(tmp_path):
    """As folds of a pool, whose callbacks all keep ``last.ckpt`` in one directory."""

    def save():
        atomic = ATOMIC(PL.module("plugins").TorchCheckpointIO())
        for step in range(40):
            atomic.save_checkpoint({"step": torch.tensor(step)}, str(tmp_path / "last.ckpt"))

    children = [forked(save) for _ in range(3)]
    assert [os.waitpid(each, 0)[1] for each in children] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["last.ckpt"]
    assert saved(tmp_path / "last.ckpt") == 39


def test_a_remote_path_is_left_to_the_other_one(tmp_path):
    other = Other(lambda checkpoint, path: None)
    atomic = ATOMIC(other)
    atomic.save_checkpoint({}, "memory://bucket/last.ckpt", storage_options={"a": 1})
    assert other.calls == [("memory://bucket/last.ckpt", {"a": 1})]


def test_a_link_is_replaced_and_not_written_through(atomic, tmp_path):
    torch.save({"step": torch.tensor(1)}, str(tmp_path / "best.ckpt"))
    os.symlink("best.ckpt", tmp_path / "last.ckpt")
    atomic.save_checkpoint({"step": torch.tensor(2)}, str(tmp_path / "last.ckpt"))
    assert not os.path.islink(tmp_path / "last.ckpt")
    assert (saved(tmp_path / "best.ckpt"), saved(tmp_path / "last.ckpt")) == (1, 2)


@pytest.mark.parametrize("background", [False, True])
def test_a_kill_in_the_middle_leaves_the_older_file_whole(tmp_path, background):
    atomic = ATOMIC(PL.module("plugins").TorchCheckpointIO())

    def save():
        if background:
            atomic.start()
        for step in range(10**6):
            atomic.save_checkpoint({"weights": torch.full((1 << 22,), float(step))}, str(tmp_path / "last.ckpt"))

    number = forked(save)
    until(lambda: (tmp_path / "last.ckpt").exists() and list(tmp_path.glob(".*.partial-*")), 60)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    weights = torch.load(str(tmp_path / "last.ckpt"))["weights"]
    assert weights.min() == weights.max()
