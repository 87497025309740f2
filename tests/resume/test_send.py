"""Two hosts are played one after the other; ``tests/processes/test_load_on_every_host.py`` has real ones."""

import os
import tempfile
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._resume import send
from lightning_sm._resume.send import broadcast_missing_file
from lightning_sm.errors import CheckpointError


class Hosts:
    """What rank 0 broadcasts is replayed to rank 1, whose files are below another folder."""

    def __init__(self, monkeypatch, tmp_path):
        self.monkeypatch, self.sent, self.replayed = monkeypatch, [], 0
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
        monkeypatch.setattr(send, "_CHUNK", 100)

    def enter(self, rank, path, *, lacks=True, failed=False):
        answers = iter([False, lacks, failed])  # whether it is a folder with a manifest comes first
        self.monkeypatch.setattr(send, "broadcast", self._send if rank == 0 else self._replay)
        self.monkeypatch.setattr(send, "any_true", lambda _, flag: any([flag, next(answers)]))
        strategy = SimpleNamespace(barrier=lambda name: None)
        trainer = SimpleNamespace(
            world_size=2, num_nodes=2, local_rank=0, global_rank=rank, is_global_zero=rank == 0, strategy=strategy
        )
        return broadcast_missing_file(trainer, path)

    def _send(self, trainer, value, src=0):
        self.sent.append(value)
        return value

    def _replay(self, trainer, value, src=0):
        self.replayed += 1
        return self.sent[self.replayed - 1]


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    return Hosts(monkeypatch, tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "best.ckpt"
    torch.save({"state_dict": {"weight": torch.arange(100.0)}}, path)
    return path


def test_a_host_that_lacks_it_gets_a_copy_for_the_time(hosts, checkpoint):
    with hosts.enter(0, checkpoint) as path:
        assert path == str(checkpoint)
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    with hosts.enter(1, None) as path:
        assert os.path.basename(path) == "best.ckpt"
        with open(path, "rb") as file:
            assert file.read() == content
    assert not os.path.exists(os.path.dirname(path))


def test_another_version_is_replaced_for_the_time_only(hosts, checkpoint):
    with hosts.enter(0, checkpoint):
        pass
    torch.save({"state_dict": {"weight": torch.ones(100)}}, checkpoint)
    with hosts.enter(1, checkpoint) as path:
        assert torch.equal(torch.load(path)["state_dict"]["weight"], torch.arange(100.0))
    assert torch.equal(torch.load(checkpoint)["state_dict"]["weight"], torch.ones(100))


def test_where_all_have_it_nothing_is_sent(hosts, checkpoint):
    for rank in (0, 1):
        with hosts.enter(rank, checkpoint, lacks=False) as path:
            assert path == str(checkpoint)
    assert len(hosts.sent) == 2


@pytest.mark.parametrize("path", [None, "s3://bucket/best.ckpt"])
def test_what_is_nobodys_file_is_left_alone(hosts, path):
    with hosts.enter(0, path) as found:
        assert found == path


@pytest.mark.parametrize("missing", ["nowhere.ckpt", "folder.ckpt"])
def test_what_rank_zero_lacks_is_not_sent(hosts, tmp_path, missing):
    (tmp_path / "folder.ckpt").mkdir()
    with hosts.enter(0, tmp_path / missing, lacks=False) as found:
        assert found == str(tmp_path / missing)


def test_one_host_finds_its_own_files():
    with broadcast_missing_file(SimpleNamespace(world_size=8, num_nodes=1), "x.ckpt") as found:
        assert found == "x.ckpt"


@pytest.mark.parametrize(
    ("constant", "value", "reason"),
    [("_MAX_BYTES", 10, "exceed the limit of 10 for a broadcast"), ("_MAX_SECONDS", -1.0, "takes more than -1 s")],
)
def test_there_is_a_bound(hosts, checkpoint, monkeypatch, constant, value, reason):
    monkeypatch.setattr(send, constant, value)
    with pytest.raises(CheckpointError, match=reason), hosts.enter(0, checkpoint):
        pass
    checkpoint.unlink()
    with pytest.raises(CheckpointError, match=reason), hosts.enter(1, checkpoint):
        pass
    assert not any(os.scandir(tempfile.gettempdir()))


def test_a_host_that_cannot_write_goes_on_receiving(hosts, checkpoint, tmp_path):
    with hosts.enter(0, checkpoint):
        pass
    (tmp_path / "tmp").write_text("")
    checkpoint.unlink()
    with pytest.raises(CheckpointError, match="global_rank 1 could not receive it"), hosts.enter(1, checkpoint):
        pass
    assert hosts.replayed == len(hosts.sent)


def test_bytes_that_change_on_the_way_are_not_loaded(hosts, checkpoint):
    with hosts.enter(0, checkpoint):
        pass
    hosts.sent = [b"x" * len(value) if isinstance(value, bytes) else value for value in hosts.sent]
    checkpoint.unlink()
    with pytest.raises(CheckpointError, match="its checksums do not match"), hosts.enter(1, checkpoint):
        pass
