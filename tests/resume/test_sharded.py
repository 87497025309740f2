"""Sharded checkpoints of one process; ``tests/sharded`` has real strategies and hosts."""

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from lightning_sm import _atomic_file
from lightning_sm._atomic_file import remove_stale
from lightning_sm._resume import sharded
from lightning_sm._resume.record import MANIFEST, read_manifest
from lightning_sm._resume.sharded import ShardedWriter, install_sharded_writer
from lightning_sm._resume.storage import Storage
from lightning_sm.errors import CheckpointError
from tests.resume.job import NAMESPACE, forked, kill
from tests.resume.one_process import DDPStrategy, trainer_with

SHARDS = ["meta.pt", "sub/__0_0.distcp"]


class FSDPStrategy(DDPStrategy):
    """One process's strategy that writes folders of two files, and then fails if it is told to."""

    # Lightning's own classes tell by their module which of them writes.
    __module__ = "pytorch_lightning.strategies.fsdp"
    error = None
    writer: ShardedWriter

    def __init__(self):
        self.lightning_module = SimpleNamespace(parameters=list)

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        for name in SHARDS:
            path = Path(filepath, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(checkpoint["content"])
        if self.error is not None:
            raise self.error

    def remove_checkpoint(self, path):
        raise AssertionError("Lightning removes on the main host only")


@pytest.fixture
def strategy(tmp_path, monkeypatch):
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(sharded, "MEMORY", str(tmp_path / "memory"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "staged"))
    found = FSDPStrategy()
    found.writer = install_sharded_writer(NAMESPACE, trainer_with(found, global_step=3, current_epoch=1), found)
    yield found
    left = [name for folder in ("memory", "staged") for _, _, files in os.walk(tmp_path / folder) for name in files]
    assert left == []


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def save(strategy, path, content=b"one"):
    strategy.save_checkpoint({"content": content}, str(path))


def whole(path):
    """The content of a folder that is as its record says."""
    record = read_manifest(str(path))
    assert record is not None
    assert record.problem(str(path)) is None
    return Path(path, "meta.pt").read_bytes()


def names(directory):
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_was_there_is_replaced(strategy, directory, monkeypatch, can_exchange, kind):
    if not can_exchange:
        monkeypatch.setattr(_atomic_file, "_exchange", lambda *_: False)
    last = directory / "last.ckpt"
    directory.mkdir()
    if kind == "folder":
        save(strategy, last)
    elif kind == "file":
        last.write_text("of another strategy")
    else:
        last.symlink_to("elsewhere.ckpt")
    save(strategy, last, b"two")
    assert whole(last) == b"two"
    assert names(directory) == ["last.ckpt"]


def killed_at(number, save):
    """Run ``save`` in a process that is killed before its n-th change of a name on the disk; whether it was."""

    def act():
        calls = []

        def counted(function):
            def call(*arguments, **named):
                calls.append(function)
                if len(calls) == number:
                    kill()
                return function(*arguments, **named)

            return call

        for owner, name in (
            (os, "rename"), (os, "makedirs"), (os, "unlink"), (os, "rmdir"), (_atomic_file, "_exchange"),
            (sharded, "flush"), (_atomic_file, "flush"),
        ):  # fmt: skip
            setattr(owner, name, counted(getattr(owner, name)))
        shutil.rmtree.avoids_symlink_attacks = False
        save()

    _, status = os.waitpid(forked(act), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_step_leaves_a_whole_checkpoint(strategy, directory):
    last = directory / "last.ckpt"
    contents, number, is_killed = [], 0, True
    while is_killed:
        number += 1
        shutil.rmtree(directory, ignore_errors=True)
        save(strategy, last)
        is_killed = killed_at(number, lambda: save(strategy, last, b"two"))
        contents.append(whole(last))
        # The next process.
        with mock.patch.multiple("lightning_sm._atomic_file", _STARTED=time.time() + 1, _cleaned=set()):
            remove_stale(str(directory), "of none")
        assert names(directory) == ["last.ckpt"]
    assert number > 8
    assert contents == sorted(contents)  # b"one" up to one step, b"two" from then on
    assert set(contents) == {b"one", b"two"}


def test_what_a_killed_run_left_is_removed(lines, strategy, directory):
    stale = directory / ".a.ckpt.partial-0123456789abcdef"
    stale.mkdir(parents=True)
    os.utime(stale, (1e9, 1e9))  # long before this process
    save(strategy, directory / "a.ckpt")
    assert names(directory) == ["a.ckpt"]
    assert lines[0] == f"Removing the incomplete checkpoint of an interrupted run: {stale}"


def test_an_error_of_the_model_stays_what_it_is_and_leaves_the_older_one(strategy, directory):
    last = directory / "last.ckpt"
    save(strategy, last)
    strategy.error = KeyError("of the model")
    with pytest.raises(KeyError, match="of the model"):
        save(strategy, last, b"two")
    assert whole(last) == b"one"
    assert names(directory) == ["last.ckpt"]


def test_a_directory_that_cannot_be_made(strategy, directory):
    directory.write_text("a file")
    with pytest.raises(CheckpointError, match=r"could not be saved \(global_rank 0: .* HINT: "):
        save(strategy, directory / "a.ckpt")


# --- in the background


@pytest.mark.parametrize("end", ["save", "finish", "failed"])
def test_an_error_of_the_copy_comes_later_and_the_older_one_stays(lines, strategy, directory, monkeypatch, end):
    save(strategy, directory / "a.ckpt")
    strategy.writer.start()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded, "copytree", full)
    save(strategy, directory / "b.ckpt", b"two")
    strategy.remove_checkpoint(str(directory / "a.ckpt"))
    if end == "failed":
        strategy.writer.finish(failed=True)
        assert any("No space left on device" in line for line in lines)
    else:
        with pytest.raises(CheckpointError, match=r"b\.ckpt could not be saved .*No space left"):
            strategy.writer.finish() if end == "finish" else save(strategy, directory / "c.ckpt")
    assert names(directory) == ["a.ckpt"]


@pytest.mark.parametrize("why", ["has room for", "cannot be used"])
def test_without_room_in_memory_it_is_synchronous_and_says_so(lines, strategy, directory, monkeypatch, why):
    strategy.writer.start()
    if why == "cannot be used":
        monkeypatch.setattr(sharded, "MEMORY", str(directory / "none"))
    else:
        monkeypatch.setattr(sharded, "state_bytes", lambda trainer: 10**18)
    save(strategy, directory / "a.ckpt")
    assert whole(directory / "a.ckpt") == b"one"
    (line,) = [line for line in lines if "synchronously" in line]
    assert line.startswith(f"Saving {directory}/a.ckpt synchronously: ")
    assert why in line


# --- at URLs


@pytest.fixture
def uploads(tmp_path, monkeypatch):
    """What happens at ``memory://``, in order; the upload after the n-th (``fails_after``) fails."""
    seen = SimpleNamespace(names=[], fails_after=100, url=f"memory://{tmp_path.name}/a.ckpt")
    upload, remove = Storage.upload, Storage.remove

    def observed_upload(storage, path, name):
        if len(seen.names) == seen.fails_after:
            raise CheckpointError("The connection is lost.", hint="Wait.")
        seen.names.append(name)
        upload(storage, path, name)

    def observed_removal(storage, name):
        seen.names.append(f"- {name}")
        remove(storage, name)

    monkeypatch.setattr(Storage, "upload", observed_upload)
    monkeypatch.setattr(Storage, "remove", observed_removal)
    return seen


def test_a_url_gets_the_record_last_and_loses_what_was_there(strategy, uploads):
    save(strategy, uploads.url)
    Storage(uploads.url).write("__7_0.distcp", b"of a larger world")
    save(strategy, uploads.url, b"two")
    assert uploads.names == ["- a.ckpt", *SHARDS, MANIFEST] * 2
    assert [file.name for file in Storage(uploads.url).files()] == sorted([*SHARDS, MANIFEST])
    strategy.remove_checkpoint(uploads.url)
    assert Storage(uploads.url).files() == []


def test_an_upload_that_fails_leaves_no_record(strategy, uploads):
    save(strategy, uploads.url)
    uploads.names.clear()
    uploads.fails_after = 2
    with pytest.raises(CheckpointError, match=r"connection is lost.*Wait"):
        save(strategy, uploads.url, b"two")
    assert [file.name for file in Storage(uploads.url).files()] == ["meta.pt"]
