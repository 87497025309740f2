import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_sm._resume.manifest import MANIFEST, Manifest
from lightning_sm._resume.record import CheckpointRecord
from lightning_sm._resume.series import Series
from lightning_sm._resume.sharded_io import install_folder_saves
from lightning_sm._resume.storage import Storage
from lightning_sm._resume.uploads import FolderUploads
from lightning_sm.errors import CheckpointError


class FSDPStrategy:
    """One process's strategy that writes folders of two files."""

    is_global_zero = True
    text = b""

    def broadcast(self, value, *_):
        return value

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        self.checkpoint = checkpoint
        os.makedirs(os.path.join(filepath, "sub"))
        for name in ("meta.pt", "sub/__0_0.distcp"):
            Path(filepath, name).write_bytes(self.text)

    def remove_checkpoint(self, path):
        raise AssertionError("Lightning removes on the main host only")


# Lightning's own classes tell by their module which of them writes.
FSDPStrategy.__module__ = "pytorch_lightning.strategies.fsdp"


@pytest.fixture
def strategy():
    found = FSDPStrategy()
    trainer = SimpleNamespace(strategy=found, world_size=1, global_rank=0, local_rank=0, is_global_zero=True)
    install_folder_saves(trainer, found, FolderUploads())
    return found


@pytest.fixture
def uploads(tmp_path, monkeypatch, request):
    """What happens at ``memory://``, in order; the upload after the n-th (``fails_after``) fails."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "staged"))
    seen = SimpleNamespace(names=[], fails_after=100, url=f"memory://{tmp_path.name}/a.ckpt")
    upload, remove = Storage.upload, Storage.remove

    def observed_upload(storage, path, name):
        if len(seen.names) == seen.fails_after:
            raise CheckpointError("The connection is lost.", hint="Wait.")
        seen.names.append(f"{storage.url}/{name}"[len(seen.url) + 1 :])
        upload(storage, path, name)

    def observed_removal(storage, name):
        if storage.exists(name) or storage.files(name):
            seen.names.append(f"- {name}")
        remove(storage, name)

    monkeypatch.setattr(Storage, "upload", observed_upload)
    monkeypatch.setattr(Storage, "remove", observed_removal)
    yield seen
    assert [name for _, _, files in os.walk(tmp_path / "staged") for name in files] == []


def save_at_url(strategy, uploads, text):
    strategy.text = text
    strategy.save_checkpoint({"epoch": 1}, uploads.url)


def test_a_url_gets_the_manifest_last(strategy, uploads):
    save_at_url(strategy, uploads, b"one")
    assert uploads.names == ["meta.pt", "sub/__0_0.distcp", MANIFEST]
    storage = Storage(uploads.url)
    manifest = Manifest.from_json(storage.read(MANIFEST))
    assert manifest.size == 6
    assert (manifest.strategy, strategy.checkpoint) == ("fsdp", {"epoch": 1})


def test_of_an_older_folder_at_a_url_the_manifest_goes_first(strategy, uploads):
    save_at_url(strategy, uploads, b"one")
    Storage(uploads.url).write("__7_0.distcp", b"of a larger world")
    uploads.names.clear()
    save_at_url(strategy, uploads, b"two")
    assert uploads.names == [f"- a.ckpt/{MANIFEST}", "- a.ckpt", "meta.pt", "sub/__0_0.distcp", MANIFEST]
    assert set(Storage(uploads.url).files()) == {"meta.pt", "sub/__0_0.distcp", MANIFEST}


def test_an_upload_that_fails_leaves_no_manifest(strategy, uploads):
    save_at_url(strategy, uploads, b"one")
    uploads.names.clear()
    uploads.fails_after = 3
    with pytest.raises(CheckpointError, match=r"connection is lost.*Older ones of other names are unchanged.*Wait"):
        save_at_url(strategy, uploads, b"two")
    assert set(Storage(uploads.url).files()) == {"meta.pt"}


def test_a_removed_folder_at_a_url_loses_its_manifest_first(strategy, uploads):
    save_at_url(strategy, uploads, b"one")
    uploads.names.clear()
    strategy.remove_checkpoint(uploads.url)
    assert uploads.names == [f"- a.ckpt/{MANIFEST}", "- a.ckpt"]
    assert Storage(uploads.url).files() == {}


@pytest.mark.parametrize("where", ["directory", "url"])
def test_a_save_of_a_series_gets_its_record_last(strategy, uploads, tmp_path, where):
    root = str(tmp_path) if where == "directory" else uploads.url.rpartition("/")[0]
    series = Series(root, "train-aaaaaa", 0)
    strategy.text = b"one"
    for number in (1, 2, 3):
        record = CheckpointRecord(f"step-{number}.ckpt", number, number, 0, "batch", 1, "fsdp").to_json()
        strategy.save_checkpoint({"lightning_sm": {"record": record}}, series.path(f"step-{number}.ckpt"))
    newest, older = series.records()
    assert (newest.step, older.step) == (3, 2)
    assert [file.name for file in newest.files] == ["step-3.ckpt/meta.pt", "step-3.ckpt/sub/__0_0.distcp"]
    if where == "directory":
        assert all(file.is_intact(series.directory) for file in newest.files)
        assert sorted(os.listdir(series.directory)) == ["step-2.ckpt", "step-2.json", "step-3.ckpt", "step-3.json"]
    uploads.fails_after = len(uploads.names)
    if where == "url":
        record = {**record, "name": "step-4.ckpt", "number": 4}
        with pytest.raises(CheckpointError, match="connection is lost"):
            strategy.save_checkpoint({"lightning_sm": {"record": record}}, series.path("step-4.ckpt"))
        assert series.records() == [newest, older]
