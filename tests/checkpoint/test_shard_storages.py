import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_sm._checkpoint.folder_io import install_folder_saves
from lightning_sm._checkpoint.folders import UPLOAD_KEY
from lightning_sm._checkpoint.manifest import MANIFEST, Manifest
from lightning_sm._checkpoint.shard_storages import FolderUploads, MemoryTier
from lightning_sm._checkpoint.storage import Storage
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import TieredCheckpoints
from lightning_sm.errors import CheckpointError

PL = Namespace("pytorch_lightning")
SHARDED = SimpleNamespace(_state_dict_type="sharded")


def test_each_world_size_has_a_namespace_of_its_own():
    assert MemoryTier("my-model", 16).name == "my-model-16"


@pytest.mark.parametrize("name", ["", "a/b", "-a", "ä", "x" * 129])
def test_a_name_that_the_service_cannot_take_is_refused(name):
    with pytest.raises(CheckpointError, match=r"sagemaker\.tiered_checkpoints is .* HINT: Name"):
        MemoryTier(name, 2).check(PL, SHARDED)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "amzn_sagemaker_checkpointing", None)
    with pytest.raises(CheckpointError, match="HINT: Add amzn-sagemaker-checkpointing"):
        MemoryTier("a", 2).check(PL, SHARDED)


@pytest.mark.parametrize("attributes", [{}, {"_state_dict_type": "full"}, {"_save_distributed_checkpoint": False}])
def test_a_strategy_that_saves_nothing_sharded_is_refused(monkeypatch, attributes):
    monkeypatch.setitem(sys.modules, "amzn_sagemaker_checkpointing", SimpleNamespace())
    with pytest.raises(CheckpointError, match="SimpleNamespace does not save with"):
        MemoryTier("a", 2).check(PL, SimpleNamespace(**attributes))


def test_the_interval_is_a_duration():
    with pytest.raises(CheckpointError, match=r"interval of TieredCheckpoints: .* HINT: Write 30s"):
        TieredCheckpoints("a", interval="soon")


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
    seen = SimpleNamespace(names=[], fails_after=100, url=f"memory://{request.node.name}/a.ckpt")
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
    assert strategy.checkpoint == {"epoch": 1, UPLOAD_KEY: manifest.save_id}


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
