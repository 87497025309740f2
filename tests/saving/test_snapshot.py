import collections
import io

import pytest
import torch

from lightning_sm._checkpoint.async_io import Snapshot


def test_a_copy_stays_as_it_is_while_everything_changes():
    weights = torch.ones(3, 4)
    checkpoint = {"state_dict": collections.OrderedDict(w=weights), "epochs": [1, 2], "nested": ({"a": weights[0]},)}
    copied = Snapshot().take(checkpoint)
    weights.zero_()
    checkpoint["epochs"].append(3)
    checkpoint["nested"][0]["b"] = 1
    assert torch.equal(copied["state_dict"]["w"], torch.ones(3, 4))
    assert torch.equal(copied["nested"][0]["a"], torch.ones(4))
    assert (copied["epochs"], list(copied["nested"][0])) == ([1, 2], ["a"])
    assert type(copied["state_dict"]) is collections.OrderedDict


def test_the_memory_serves_again():
    snapshot, tensors = Snapshot(), {"a": torch.rand(5), "b": torch.rand(5), "c": torch.rand(2, 3)}
    first = {name: value.data_ptr() for name, value in snapshot.take(tensors).items()}
    for value in tensors.values():
        value.add_(1)
    second = snapshot.take(tensors)
    assert {value.data_ptr() for value in second.values()} == set(first.values())
    assert all(torch.equal(second[name], tensors[name]) for name in tensors)
    assert not {value.data_ptr() for value in tensors.values()} & set(first.values())
    snapshot.take({"c": tensors["c"]})
    assert sum(len(buffers) for buffers in snapshot._buffers.values()) == 1  # the memory of the others is given back


def test_tied_weights_stay_tied():
    layer = torch.nn.Linear(50, 50, bias=False)
    both = torch.nn.ModuleDict({"one": layer, "two": layer}).state_dict()
    copied = Snapshot().take(both)
    assert copied["one.weight"].data_ptr() == copied["two.weight"].data_ptr()
    written = io.BytesIO()
    torch.save(copied, written)
    assert len(written.getvalue()) < 1.5 * 50 * 50 * 4


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


def test_it_can_be_taken_again_after_one_under_inference_mode():
    snapshot, weights = Snapshot(), torch.ones(3)
    with torch.inference_mode():
        snapshot.take({"w": weights, "metric": torch.ones(2)})
    assert torch.equal(snapshot.take({"w": weights.add_(1)})["w"], torch.full((3,), 2.0))


def test_what_cannot_be_copied_says_so():
    with pytest.raises(TypeError):
        Snapshot().take({"generator": (number for number in range(3))})


def test_a_checkpoint_that_contains_itself():
    checkpoint = {"w": torch.ones(1)}
    checkpoint["self"] = checkpoint
    copied = Snapshot().take(checkpoint)
    assert copied["self"] is copied
