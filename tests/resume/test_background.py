"""``AtomicCheckpointIO`` in the background, and the copies that it writes."""

import collections
import os
import threading
from typing import Any, Dict

import pytest
import torch

from lightning_sm._resume.atomic_io import atomic_checkpoint_io
from lightning_sm._resume.snapshot import Snapshot
from lightning_sm.errors import CheckpointError
from tests.resume.job import NAMESPACE, forked


class Slow(NAMESPACE.module("plugins").CheckpointIO):
    """Writes when it is allowed to, and notes what it did."""

    def __init__(self):
        self.allowed = threading.Event()
        self.done = []
        self.error = None
        self.is_torn_down = False

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        assert self.allowed.wait(60)
        if self.error is not None:
            raise self.error
        with open(path, "w"):
            self.done.append(("save", os.path.basename(path), int(checkpoint["step"])))

    def load_checkpoint(self, path, map_location=None):
        return list(self.done)

    def remove_checkpoint(self, path):
        self.done.append(("remove", os.path.basename(path)))

    def teardown(self):
        self.is_torn_down = True


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def background(slow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = atomic_checkpoint_io(NAMESPACE)(slow)
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
    assert background.is_pending("a.ckpt")
    assert not background.is_pending("b.ckpt")
    slow.allowed.set()
    background.finish()
    assert slow.done == [("save", "a.ckpt", 1)]
    assert not background.is_pending("a.ckpt")


def test_a_relative_path_is_that_of_the_moment_of_the_save(background, slow, tmp_path, monkeypatch):
    for name in ("a.ckpt", "b.ckpt"):
        background.save_checkpoint(step(1), name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    slow.allowed.set()
    background.finish()
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "b.ckpt", "elsewhere"]


@pytest.mark.parametrize("what", ["save", "load", "finish"])
def test_after_an_error_the_older_one_stays_and_what_comes_next_raises_it(background, slow, what):
    slow.error = OSError(28, "No space left on device")
    background.save_checkpoint(step(1), "new.ckpt")
    background.remove_checkpoint("old.ckpt")
    slow.allowed.set()
    background._last.result()
    following = {
        "save": lambda: background.save_checkpoint(step(2), "b.ckpt"),
        "load": lambda: background.load_checkpoint("a.ckpt"),
        "finish": background.finish,
    }
    with pytest.raises(CheckpointError, match=r"new\.ckpt could not be saved .*No space left"):
        following[what]()
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


def test_after_the_end_a_save_is_done_when_it_returns(background, slow):
    before = set(threading.enumerate())
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
    assert not set(threading.enumerate()) - before


def test_what_cannot_be_copied_is_saved_while_training_waits(lines, background, slow):
    slow.allowed.set()
    background.save_checkpoint({"step": torch.tensor(1), "lock": threading.Lock()}, "a.ckpt")
    assert slow.done == [("save", "a.ckpt", 1)]
    assert lines[0].startswith("Saving a.ckpt synchronously: ")


def test_a_copy_stays_as_it_is_while_everything_changes():
    weights = torch.ones(3, 4)
    checkpoint: Dict[str, Any] = {
        "state_dict": collections.OrderedDict(w=weights),
        "epochs": [1, 2],
        "nested": ({"a": weights[0]},),
        "tied": weights,
    }
    checkpoint["epochs"].append(checkpoint)
    copied = Snapshot().take(checkpoint)
    weights.zero_()
    checkpoint["epochs"].append(3)
    checkpoint["nested"][0]["b"] = 1
    assert torch.equal(copied["state_dict"]["w"], torch.ones(3, 4))
    assert torch.equal(copied["nested"][0]["a"], torch.ones(4))
    assert copied["tied"].data_ptr() == copied["state_dict"]["w"].data_ptr()
    assert (copied["epochs"], list(copied["nested"][0])) == ([1, 2, copied], ["a"])
    assert type(copied["state_dict"]) is collections.OrderedDict


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.empty(0, 3),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(6).expand(4, 6),
        torch.rand(4, 6)[:, ::2],
        torch.ones(3, dtype=torch.bfloat16),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.rand(3)),
        torch.rand(3, requires_grad=True),
    ],
    ids=["scalar", "empty", "channels_last", "expanded", "strided", "bfloat16", "sparse", "parameter", "leaf"],
)
def test_tensors_of_each_kind(tensor):
    snapshot = Snapshot()
    for _ in range(2):
        copied = snapshot.take({"t": tensor})["t"]
        assert (copied.dtype, copied.shape, type(copied)) == (tensor.dtype, tensor.shape, type(tensor))
        assert torch.equal(copied.to_dense(), tensor.to_dense()) if tensor.is_sparse else torch.equal(copied, tensor)
        assert copied is not tensor


def test_conjugate_and_negative_values_of_one_memory():
    numbers = torch.rand(3, dtype=torch.cfloat)
    views = {"all": numbers, "conjugate": numbers.conj(), "imaginary": numbers.imag, "negative": numbers.conj().imag}
    copied = Snapshot().take(views)
    assert all(torch.equal(copied[name], view) for name, view in views.items())


def test_it_can_be_taken_again_after_one_under_inference_mode():
    snapshot, weights = Snapshot(), torch.ones(3)
    with torch.inference_mode():
        snapshot.take({"w": weights, "metric": torch.ones(2)})
    assert torch.equal(snapshot.take({"w": weights.add_(1)})["w"], torch.full((3,), 2.0))


def _copy_shards(folder):
    from torch.distributed import device_mesh, tensor

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    mesh = device_mesh.init_device_mesh("cpu", (1,))
    weights = tensor.distribute_tensor(torch.arange(8.0), mesh, [tensor.Shard(0)])
    snapshot = Snapshot()
    copied = snapshot.take({"state_dict": {"weights": weights}})["state_dict"]["weights"]
    weights.to_local().mul_(2)
    assert type(copied) is tensor.DTensor
    assert copied.placements == weights.placements
    assert copied.to_local().tolist() == list(range(8))
    place = copied.to_local().data_ptr()
    again = snapshot.take({"weights": weights})["weights"]
    assert again.to_local().data_ptr() == place != weights.to_local().data_ptr()
    assert again.to_local().tolist() == [2.0 * number for number in range(8)]
    torch.distributed.destroy_process_group()


def test_shards_are_copied_as_shards_into_memory_that_is_used_again(tmp_path):
    if not hasattr(pytest.importorskip("torch.distributed.tensor"), "distribute_tensor"):
        pytest.skip("this torch copies shards as any other object")
    # In a process of its own, as they start threads, after which other tests could not fork.
    _, status = os.waitpid(forked(lambda: _copy_shards(tmp_path)), 0)
    assert status == 0
