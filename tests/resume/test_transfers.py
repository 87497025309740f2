"""The files of a given checkpoint in one process; ``tests/sharded`` and ``tests/processes`` have several hosts."""

import json
import os
from dataclasses import asdict
from types import SimpleNamespace

import fsspec
import pytest

from lightning_sm._resume import transfers
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, SavedFile
from lightning_sm._resume.storage import Storage
from lightning_sm._resume.transfers import (
    LocalFiles,
    has_folder,
    local_checkpoint,
    remote_folder_problem,
)
from lightning_sm.errors import CheckpointError
from tests.resume.one_process import DDPStrategy, trainer_with


def test_what_changes_on_the_way_is_no_file(tmp_path):
    (tmp_path / "sent").write_bytes(b"0123456789")
    file, received = SavedFile.read(str(tmp_path), "sent"), iter([b"something ", b"else"])
    with pytest.raises(OSError, match=r"received incompletely: .* has 14 bytes instead of 10"):
        transfers._write_received(received, str(tmp_path / "got"), str(tmp_path / ".got.partial"), file)
    assert os.listdir(tmp_path) == ["sent"]


# --- a given checkpoint


class DeepSpeedStrategy(DDPStrategy):
    """Stands for a strategy that reads local paths only."""

    __module__ = "pytorch_lightning.strategies"

    config = {"zero_optimization": {"stage": 2}}  # noqa: RUF012


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    """The URL of a sharded checkpoint."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    local = tmp_path / "a.ckpt"
    for path in (tmp_path / "copies", local, local / "tag"):
        path.mkdir()
    for name in ("latest", "tag/shard"):
        (local / name).write_text(name)
    files = tuple(SavedFile.read(str(local), name) for name in ("latest", "tag/shard"))
    record = CheckpointRecord("a.ckpt", 0, 8, 1, "", 1, "deepspeed_stage_2", "one", files=files)
    Storage(str(local)).write(MANIFEST, json.dumps(asdict(record)).encode())
    url = f"memory://{request.node.originalname}/a.ckpt"
    for name in ("latest", "tag/shard", MANIFEST):
        Storage(url).upload(str(local / name), name)
    yield url
    fsspec.filesystem("memory").rm(f"/{request.node.originalname}", recursive=True)
    assert os.listdir(tmp_path / "copies") == []


def obtained(path, strategy=None):
    """The path of a given checkpoint for Lightning, with the names of the files there, which are removed then."""
    files = LocalFiles()
    try:
        found = files.obtain_given(trainer_with(strategy or DeepSpeedStrategy()), path)
        inside = [os.path.join(at, name) for at, _, names in os.walk(str(found)) for name in names]
        return found, sorted(os.path.relpath(each, found) for each in inside)
    finally:
        files.close()


def test_what_is_at_a_url_is_copied(folder, tmp_path):
    whole = ["latest", MANIFEST, "tag/shard"]
    path, names = obtained(folder)
    assert path.startswith(str(tmp_path / "copies"))
    assert names == obtained(f"{folder}/")[1] == whole
    assert obtained(str(tmp_path / "a.ckpt")) == (str(tmp_path / "a.ckpt"), whole)
    Storage(folder.rpartition("/")[0]).write("b.ckpt", b"12345")
    assert os.path.basename(obtained(folder.replace("a.ckpt", "b.ckpt"))[0]) == "b.ckpt"


def test_what_lightning_reads_is_left_alone(folder):
    for path in (None, folder, "https://host/a.ckpt", "/opt/ml/checkpoints/a.ckpt"):
        assert obtained(path, DDPStrategy())[0] == path


@pytest.mark.parametrize("where", ["url", "directory"])
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tag/shard", None, "1 of its 3 files cannot be used: a.ckpt/tag/shard is missing"),
        ("tag/shard", b"short", "1 of its 3 files cannot be used: a.ckpt/tag/shard"),
        ("tag/shard", b"tag/shapd", r"1 of its 3 files cannot be used: .*shard is corrupted, or of another save"),
        (MANIFEST, b"{", "its manifest.json cannot be read"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(folder, tmp_path, where, name, content, problem):
    path = folder if where == "url" else str(tmp_path / "a.ckpt")
    parent, _, base = f"{path}/{name}".rpartition("/")
    if content is None:
        Storage(parent).remove(base)
    else:
        Storage(parent).write(base, content)
    with pytest.raises(CheckpointError, match=f"cannot be loaded: {problem}.* HINT: Pass another checkpoint"):
        obtained(path)


@pytest.mark.parametrize("where", ["url", "directory"])
def test_shards_of_another_strategy_are_refused(folder, tmp_path, where):
    other = DeepSpeedStrategy()
    other.config = {"zero_optimization": {"stage": 3}}
    with pytest.raises(CheckpointError, match=r"cannot be loaded: it was saved with ZeRO stage 2.* HINT: "):
        obtained(folder if where == "url" else str(tmp_path / "a.ckpt"), other)


def test_nothing_there_and_other_protocols_are_errors_with_a_hint(folder, monkeypatch):
    with pytest.raises(CheckpointError, match=r"There is no checkpoint memory://.*b\.ckpt\. HINT: "):
        obtained(folder.replace("a.ckpt", "b.ckpt"))
    with pytest.raises(CheckpointError, match=r"The ckpt_path gs://b/a\.ckpt is neither a local .* HINT: "):
        obtained("gs://b/a.ckpt")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(CheckpointError, match=r"cannot be copied to this host .* HINT: .*TMPDIR"):
        obtained(folder)


def test_one_process_reads_a_copy(folder, tmp_path):
    assert has_folder(folder)
    assert not has_folder(f"{folder}/{MANIFEST}")
    assert remote_folder_problem(folder) is None
    with local_checkpoint(folder) as copy:
        assert os.path.isfile(os.path.join(copy, "tag", "shard"))
    assert not os.path.exists(copy)
    with local_checkpoint(str(tmp_path)) as path:
        assert path == str(tmp_path)
    Storage(folder).write("tag/shard", b"short")
    assert "tag/shard has 5 bytes instead of 9" in remote_folder_problem(folder)
