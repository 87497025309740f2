"""Every host gets the files of a checkpoint. Hosts are played by threads; ``tests/processes`` has real ones."""

import importlib
import os
import threading
from types import SimpleNamespace
from typing import Any, List

import pytest

from lightning_sm._resume import choose, ranks, transfers
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, SavedFile
from lightning_sm._resume.storage import Storage
from lightning_sm._resume.transfers import (
    LocalFiles,
    fetch_missing_shards,
    has_folder,
    local_checkpoint,
    remote_folder_problem,
)
from lightning_sm.errors import CheckpointError
from tests.resume.one_process import DDPStrategy, trainer_with

HOSTS = 3


class Hosts:
    """Threads that stand for ranks, each on a host of its own, with collectives that wait for all of them."""

    def __init__(self, monkeypatch):
        self.barrier = threading.Barrier(HOSTS, timeout=20)
        self.values: List[Any] = [None] * HOSTS
        for module in (choose, ranks, transfers):
            monkeypatch.setattr(module, "gather_objects", self.gather)
        for module in (choose, transfers):
            monkeypatch.setattr(module, "broadcast", lambda trainer, value, src=0: self.gather(trainer, value)[src])

    def gather(self, trainer, value):
        self.values[trainer.global_rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found

    def run(self, function):
        """What each rank returned or raised."""
        results: List[Any] = [None] * HOSTS

        def act(rank):
            strategy = SimpleNamespace(node_rank=rank, barrier=lambda name: None)
            trainer = SimpleNamespace(
                global_rank=rank, local_rank=0, world_size=HOSTS, num_nodes=HOSTS, node_rank=rank,
                is_global_zero=rank == 0, strategy=strategy,
            )  # fmt: skip
            try:
                results[rank] = function(trainer)
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=act, args=(rank,)) for rank in range(HOSTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results


@pytest.fixture
def hosts(monkeypatch):
    return Hosts(monkeypatch)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder for each host, with a file of all and one of its own; the first file is empty."""
    monkeypatch.setattr(transfers, "_CHUNK", 100)
    made = [tmp_path / str(rank) for rank in range(HOSTS)]
    for rank, folder in enumerate(made):
        (folder / "sub").mkdir(parents=True)
        (folder / "empty").write_bytes(b"")
        (folder / "sub" / f"own-{rank}").write_bytes(os.urandom(1000 + rank))
    return made


def listed(folders):
    own = [SavedFile.read(str(folder), f"sub/own-{rank}") for rank, folder in enumerate(folders)]
    return [SavedFile.read(str(folders[0]), "empty"), *own]


def fetch(hosts, folders, files):
    return hosts.run(lambda trainer: fetch_missing_shards(trainer, str(folders[trainer.global_rank]), files))


def test_each_host_gets_what_it_lacks(hosts, folders):
    files = listed(folders)
    (folders[2] / "empty").unlink()
    (folders[1] / "sub" / "own-0").write_bytes(b"of another save")
    assert fetch(hosts, folders, files) == [None] * HOSTS
    for folder in folders:
        assert [file.problem(str(folder / file.name)) for file in files] == [None] * len(files)
        assert sorted(os.listdir(folder / "sub")) == ["own-0", "own-1", "own-2"]


@pytest.mark.parametrize("problem", ["cannot write", "changes on the way"])
def test_an_error_of_one_host_is_one_on_all(hosts, folders, monkeypatch, problem):
    files = listed(folders)
    if problem == "cannot write":
        for path in (folders[1] / "sub").iterdir():
            path.unlink()
        (folders[1] / "sub").rmdir()
        files = [file for file in files if file.name != "sub/own-1"]
        (folders[1] / "sub").write_text("a file")
    else:
        monkeypatch.setattr(transfers, "_chunks", lambda path: iter([b"something else"]))
    results = fetch(hosts, folders, files)
    assert [type(each) for each in results] == [CheckpointError] * HOSTS
    assert all("is not on every host, and could not be sent (global_rank 1: " in str(each) for each in results)
    assert not [name for folder in folders for name in os.listdir(folder) if "partial" in name]


# --- a given checkpoint


class DeepSpeedStrategy(DDPStrategy):
    """Stands for a strategy that reads local paths only."""

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
    Storage(str(local)).write(MANIFEST, importlib.import_module("json").dumps(record.to_json()).encode())
    url = f"memory://{request.node.originalname}/a.ckpt"
    for name in ("latest", "tag/shard", MANIFEST):
        Storage(url).upload(str(local / name), name)
    yield url
    importlib.import_module("fsspec").filesystem("memory").rm(f"/{request.node.originalname}", recursive=True)
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
