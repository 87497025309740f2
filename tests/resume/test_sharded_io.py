import os
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_sm import _atomic_file
from lightning_sm._resume import sharded_files, sharded_io
from lightning_sm._resume.manifest import MANIFEST, Manifest
from lightning_sm._resume.sharded_files import missing_room, remove_stale, restore_interrupted
from lightning_sm._resume.sharded_io import folder_saves_of, install_folder_saves
from lightning_sm.errors import CheckpointError
from tests.projects.container import log_lines


class FSDPStrategy:
    """One process's strategy that writes folders of a few files."""

    is_global_zero = True

    def __init__(self):
        self.written = []
        self.lightning_module = SimpleNamespace(parameters=list)

    def broadcast(self, value, *_):
        return value

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        self.written.append(filepath)
        os.makedirs(os.path.join(filepath, "sub"), exist_ok=True)
        for name in ("meta.pt", "sub/__0_0.distcp"):
            Path(filepath, name).write_bytes(checkpoint["content"])

    def remove_checkpoint(self, path):
        raise AssertionError("Lightning removes on the main host only")


# Lightning's own classes tell by their module which of them writes.
FSDPStrategy.__module__ = "pytorch_lightning.strategies.fsdp"


@pytest.fixture
def strategy(tmp_path, monkeypatch):
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(sharded_files, "MEMORY", str(memory))
    found = FSDPStrategy()
    trainer = SimpleNamespace(
        strategy=found, world_size=1, global_rank=0, local_rank=0, is_global_zero=True, global_step=0
    )
    install_folder_saves(trainer, found)
    return found


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def whole(path):
    manifest = Manifest.read(str(path))
    assert manifest is not None
    assert manifest.problems(str(path)) == ()
    return Path(path, "meta.pt").read_bytes()


def names(directory):
    return sorted(os.listdir(directory))


def test_a_folder_appears_with_its_manifest(strategy, directory):
    with log_lines() as lines:
        strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    assert names(directory) == ["a.ckpt"]
    assert names(directory / "a.ckpt") == [MANIFEST, "meta.pt", "sub"]
    assert whole(directory / "a.ckpt") == b"one"
    manifest = Manifest.read(str(directory / "a.ckpt"))
    assert (manifest.format, manifest.world_size) == ("dcp", 1)
    assert [file.name for file in manifest.files] == ["meta.pt", "sub/__0_0.distcp"]
    (hidden,) = strategy.written
    assert os.path.basename(hidden) == f".a.ckpt.partial-{manifest.save_id}"
    assert lines[0].startswith(f"Saved {directory}/a.ckpt: format dcp, world_size 1, 2 files, 0.0 MB, ")


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_was_there_is_replaced(strategy, directory, monkeypatch, can_exchange, kind):
    if not can_exchange:
        monkeypatch.setattr(_atomic_file, "_exchange", lambda *_: False)
    last = directory / "last.ckpt"
    if kind == "folder":
        strategy.save_checkpoint({"content": b"one"}, str(last))
    elif kind == "file":
        directory.mkdir()
        last.write_text("of another strategy")
    else:
        directory.mkdir()
        last.symlink_to("elsewhere.ckpt")
    strategy.save_checkpoint({"content": b"two"}, str(last))
    assert whole(last) == b"two"
    assert names(directory) == ["last.ckpt"]


def killed_at(number, can_exchange, save):
    """Run ``save`` in a process that is killed before its n-th change of a name on the disk; whether it was."""
    pid = os.fork()
    if pid == 0:
        calls = []

        def counted(function):
            def call(*arguments, **named):
                calls.append(function)
                if len(calls) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **named)

            return call

        if not can_exchange:
            _atomic_file._exchange = lambda *_: False
        for owner, name in (
            (os, "rename"), (os, "makedirs"), (os, "unlink"), (os, "rmdir"), (_atomic_file, "_exchange"),
            (sharded_files, "flush"), (_atomic_file, "flush"),
        ):  # fmt: skip
            setattr(owner, name, counted(getattr(owner, name)))
        shutil.rmtree.avoids_symlink_attacks = False
        save()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_at_any_step_leaves_a_whole_checkpoint(strategy, directory, can_exchange):
    last = directory / "last.ckpt"
    found, number, is_killed = [], 0, True
    while is_killed:
        number += 1
        shutil.rmtree(directory, ignore_errors=True)
        strategy.save_checkpoint({"content": b"one"}, str(last))
        is_killed = killed_at(number, can_exchange, lambda: strategy.save_checkpoint({"content": b"two"}, str(last)))
        visible = last.exists()
        restore_interrupted(str(directory))
        found.append((visible, whole(last)))
        remove_stale(str(directory))
        assert names(directory) == ["last.ckpt"]
    contents = [content for _, content in found]
    assert number > 8
    assert contents == sorted(contents)  # b"one" up to one step, b"two" from then on
    assert set(contents) == {b"one", b"two"}
    # Only where no exchange is possible there is a step without the visible name.
    assert sum(not visible for visible, _ in found) == (0 if can_exchange else 1)


def test_what_a_killed_run_left_is_removed(strategy, directory):
    stale = directory / ".a.ckpt.partial-0123456789abcdef"
    stale.mkdir(parents=True)
    (directory / ".mine").mkdir()
    with log_lines() as lines:
        strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    assert names(directory) == [".mine", "a.ckpt"]
    assert lines[0] == f"Removing the incomplete checkpoint of an interrupted run: {stale}"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("failed writing file")])
def test_a_failed_write_leaves_the_older_one(strategy, directory, error):
    last = directory / "last.ckpt"
    strategy.save_checkpoint({"content": b"one"}, str(last))
    install_with_write(strategy, error)
    with pytest.raises(CheckpointError, match=rf"{last}.*global_rank 0: .*one is unchanged\. HINT: Check the"):
        strategy.save_checkpoint({"content": b"two"}, str(last))
    assert whole(last) == b"one"
    assert names(directory) == ["last.ckpt"]


def install_with_write(strategy, error):
    def write(checkpoint, path):
        os.makedirs(path, exist_ok=True)
        Path(path, "meta.pt").write_bytes(checkpoint["content"])
        raise error

    saves = folder_saves_of(strategy)
    strategy.save_checkpoint = lambda checkpoint, path: saves.save(write, checkpoint, path)


def test_another_error_stays_as_it_is(strategy, directory):
    install_with_write(strategy, KeyError("of the model"))
    with pytest.raises(KeyError, match="of the model"):
        strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    assert names(directory) == []


def test_a_directory_that_cannot_be_made(strategy, directory):
    directory.write_text("a file")
    with pytest.raises(CheckpointError, match=r"could not be saved \(global_rank 0: .* HINT: "):
        strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))


def test_removal(strategy, directory):
    strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    strategy.remove_checkpoint(str(directory / "a.ckpt"))
    strategy.remove_checkpoint(str(directory / "a.ckpt"))
    assert names(directory) == []


def test_a_url_is_never_a_local_folder(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"FSDPStrategy cannot save .* to s3://bucket/a\.ckpt.* HINT: "):
        strategy.save_checkpoint({"content": b"one"}, "s3://bucket/a.ckpt")
    assert not (tmp_path / "s3:").exists()


@pytest.fixture
def copying(strategy, monkeypatch):
    """Saves in the background, whose copy waits until it is allowed."""
    allowed, copy = threading.Event(), sharded_files.copy_folder

    def waits(*arguments):
        assert allowed.wait(60)
        copy(*arguments)

    monkeypatch.setattr(sharded_io, "copy_folder", waits)
    saves = folder_saves_of(strategy)
    saves.start()
    yield allowed
    allowed.set()
    saves.wait()


def test_a_save_returns_before_the_copy(strategy, directory, copying, tmp_path):
    saves = folder_saves_of(strategy)
    strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    assert saves.is_pending(directory / "a.ckpt")
    assert not (directory / "a.ckpt").exists()
    copying.set()
    saves.finish()
    assert not saves.is_pending(directory / "a.ckpt")
    assert whole(directory / "a.ckpt") == b"one"
    assert names(directory) == ["a.ckpt"]
    assert [name for _, _, files in os.walk(tmp_path / "memory") for name in files] == []
    strategy.save_checkpoint({"content": b"two"}, str(directory / "b.ckpt"))
    assert whole(directory / "b.ckpt") == b"two"  # synchronous after the end


def test_the_older_one_is_removed_after_the_agreement_on_the_newer_one(strategy, directory, copying):
    saves = folder_saves_of(strategy)
    copying.set()
    strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    saves.finish()
    saves.start()
    strategy.save_checkpoint({"content": b"two"}, str(directory / "b.ckpt"))
    strategy.remove_checkpoint(str(directory / "a.ckpt"))
    assert "a.ckpt" in names(directory)
    saves.finish()
    assert names(directory) == ["b.ckpt"]


@pytest.mark.parametrize("end", ["save", "finish", "wait"])
def test_an_error_of_the_copy_comes_later_and_the_older_one_stays(strategy, directory, monkeypatch, end):
    strategy.save_checkpoint({"content": b"one"}, str(directory / "a.ckpt"))
    saves = folder_saves_of(strategy)
    saves.start()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_io, "copy_folder", full)
    strategy.save_checkpoint({"content": b"two"}, str(directory / "b.ckpt"))
    strategy.remove_checkpoint(str(directory / "a.ckpt"))
    if end == "wait":
        assert isinstance(saves.wait(), OSError)
    else:
        with pytest.raises(CheckpointError, match=r"b\.ckpt could not be saved .*No space left"):
            saves.finish() if end == "finish" else strategy.save_checkpoint(
                {"content": b"three"}, str(directory / "c.ckpt")
            )
    assert names(directory) == ["a.ckpt"]


def test_without_room_in_memory_it_is_synchronous_and_says_so(strategy, directory, monkeypatch):
    saves = folder_saves_of(strategy)
    saves.start()
    monkeypatch.setattr(sharded_io, "missing_room", lambda size: f"no room for {size} bytes")
    with log_lines() as lines:
        for name in ("a.ckpt", "b.ckpt"):
            strategy.save_checkpoint({"content": b"one"}, str(directory / name))
    assert whole(directory / "a.ckpt") == b"one"
    assert [line for line in lines if "synchronously" in line] == [
        f"Saving {directory}/a.ckpt synchronously: no room for {2**20} bytes"
    ]


def test_room(tmp_path):
    assert missing_room(1, str(tmp_path)) is None
    assert "has room for" in missing_room(10**18, str(tmp_path))
    assert "cannot be used" in missing_room(1, str(tmp_path / "none"))


def test_a_second_trainer_has_the_same(strategy):
    other: Any = SimpleNamespace(strategy=strategy, world_size=1, global_rank=0, local_rank=0, is_global_zero=True)
    saves = folder_saves_of(strategy)
    assert install_folder_saves(other, strategy) is saves
    assert saves.trainer is other
