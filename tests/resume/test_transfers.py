"""Single checkpoints at URLs, here of fsspec's memory file system."""

import importlib
import os
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._resume.manifest import MANIFEST, Manifest
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.storage import Storage
from lightning_sm._resume.transfers import GivenCopy, has_folder, local_checkpoint, remote_folder_problem
from lightning_sm.errors import CheckpointError

pytest.importorskip("fsspec")
_CONTENTS = {"epoch": 1, "global_step": 8, "pytorch-lightning_version": "2.6.0"}
_SHARD = "zero_pp_rank_0_mp_rank_00_optim_states.pt"


class DDPStrategy:
    node_rank = 0
    checkpoint_io = SimpleNamespace()

    def broadcast(self, value, *_):
        return value


class DeepSpeedStrategy(DDPStrategy):
    """Stands for a strategy that reads local paths only."""


def trainer_with(strategy):
    return SimpleNamespace(strategy=strategy, world_size=1, global_rank=0, local_rank=0, node_rank=0)


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    """The URL of a folder as DeepSpeed's stage 2 and one process write it, with a manifest."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    local = tmp_path / "a.ckpt"
    (local / "tag").mkdir(parents=True)
    (local / "latest").write_text("tag")
    config = {"zero_optimization": {"stage": 2}}
    contents = {**_CONTENTS, "dp_world_size": 1, "mp_world_size": 1, "ds_config": config, "module": {}}
    torch.save(contents, local / "tag" / "mp_rank_00_model_states.pt")
    torch.save({"step": torch.arange(99.0)}, local / "tag" / _SHARD)
    names = [f"tag/{_SHARD}", "tag/mp_rank_00_model_states.pt", "latest"]
    files = tuple(SavedFile.read(str(local), name) for name in names)
    Manifest("deepspeed", 1, "one", files, "deepspeed_stage_2").write(str(local))
    url = f"memory://{request.node.originalname}/a.ckpt"
    for name in [*names, MANIFEST]:
        Storage(url).upload(str(local / name), name)
    yield url
    importlib.import_module("fsspec").filesystem("memory").rm(f"/{request.node.originalname}", recursive=True)
    assert os.listdir(tmp_path / "copies") == []


def fetched(url, strategy=None):
    """The names of the files in a host's copy, which is removed then."""
    given = GivenCopy()
    copy = given.fetch(trainer_with(strategy or DeepSpeedStrategy()), url)
    if copy is None:
        return None
    size = os.path.getsize(copy)
    paths = [os.path.join(path, name) for path, _, names in os.walk(copy) for name in names]
    given.close()
    return sorted(os.path.relpath(path, copy) for path in paths) or size


def test_a_folder_is_copied_and_the_copy_removed(folder):
    assert fetched(folder) == ["latest", MANIFEST, "tag/mp_rank_00_model_states.pt", f"tag/{_SHARD}"]
    assert fetched(f"{folder}/") == fetched(folder)


def test_a_file_is_copied(folder):
    Storage(folder.rpartition("/")[0]).write("b.ckpt", b"12345")
    assert fetched(folder.replace("a.ckpt", "b.ckpt")) == 5


def test_a_local_path_and_what_lightning_reads_are_left_alone(folder):
    assert fetched("/opt/ml/checkpoints/a.ckpt") is None
    assert fetched(None) is None
    assert fetched(folder, DDPStrategy()) is None
    assert fetched("https://host/a.ckpt", DDPStrategy()) is None


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (f"tag/{_SHARD}", None, rf"cannot be loaded: it is incomplete: tag/{_SHARD} of its {MANIFEST} is missing"),
        (f"tag/{_SHARD}", b"short", f"cannot be loaded: it is truncated, or of another save: tag/{_SHARD} has another"),
        (MANIFEST, b"{", "cannot be loaded: its manifest"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(folder, name, content, problem):
    storage = Storage(folder)
    if content is None:
        storage.remove(name)
    else:
        storage.write(name, content)
    with pytest.raises(CheckpointError, match=f"{problem}.* HINT: Pass another checkpoint"):
        fetched(folder)


def test_nothing_there_and_other_protocols_are_errors_with_a_hint(folder):
    with pytest.raises(CheckpointError, match=r"There is no checkpoint memory://.*b\.ckpt\. HINT: "):
        fetched(folder.replace("a.ckpt", "b.ckpt"))
    with pytest.raises(CheckpointError, match=r"The ckpt_path gs://b/a\.ckpt is neither a local .* HINT: "):
        fetched("gs://b/a.ckpt")
    with pytest.raises(CheckpointError, match=r"There is no checkpoint memory://bucket\. HINT: "):
        fetched("memory://bucket")


def test_a_full_disk_is_an_error_with_a_hint(folder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(CheckpointError, match=r"cannot be copied to this host .* HINT: .*TMPDIR"):
        fetched(folder)


def test_one_process_reads_a_copy(folder, tmp_path):
    assert has_folder(folder)
    assert not has_folder(f"{folder}/{MANIFEST}")
    assert remote_folder_problem(folder) is None
    with local_checkpoint(folder) as copy:
        assert Manifest.read(copy).problems(copy) == ()
    assert not os.path.exists(copy)
    with local_checkpoint(str(tmp_path)) as path:
        assert path == str(tmp_path)
