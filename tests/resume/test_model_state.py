"""Sums that tell whether a callback has changed weights."""

import pytest
import torch

from lightning_sm._resume.model_state import are_equal, weight_sums

_TENSORS = {
    "odd size": torch.arange(7.0),
    "transposed": torch.arange(15.0).view(3, 5).t(),
    "number": torch.tensor(1.0),
    "flags": torch.tensor([True, False]),
    # Parts of a flat tensor, as FSDP and DeepSpeed keep parameters.
    "part of 4-byte numbers": torch.arange(9.0)[1:],
    "part of 2-byte numbers": torch.arange(6.0, dtype=torch.bfloat16)[1:],
    "not a number": torch.tensor([float("nan"), 1.0]),
}


@pytest.mark.parametrize("name", _TENSORS)
def test_sums_change_with_any_bit_and_only_then(name):
    tensor = _TENSORS[name]
    before = weight_sums([torch.ones(3), tensor])
    assert are_equal(before, weight_sums([torch.ones(3), tensor.clone()]))
    changed = tensor.clone()
    last = changed[(-1,) * changed.dim()]
    last.copy_(~last if last.dtype == torch.bool else torch.nextafter(last, last + 1))
    assert not are_equal(before, weight_sums([torch.ones(3), changed]))
    assert not are_equal(before, weight_sums([torch.ones(3)]))
