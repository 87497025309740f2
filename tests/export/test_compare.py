import math

import pytest
import torch

from lightning_sm._export import Example, compare_outputs, compare_tensors
from lightning_sm._resume.values import is_same
from lightning_sm.errors import ExportError
from tests.projects.container import log_lines

EXAMPLE = Example((torch.tensor([[1.0, 2.0], [3.0, 4.0]]),), "first batch")


def test_equal_tensors():
    values = {"weight": torch.tensor([1.0, math.nan, math.inf]), "steps": 5, "more": {"list": [torch.ones(2), "x"]}}
    again = {"weight": torch.tensor([1.0, math.nan, math.inf]), "steps": 5, "more": {"list": [torch.ones(2), "x"]}}
    assert compare_tensors(values, again) == {"compared": "tensors", "tensors": 3}


NAN = complex(math.nan, 1)
LAYOUTS = [
    lambda number: torch.tensor([[math.nan, 0, number]]).to_sparse(),
    lambda number: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [number, 1], (2, 2)),
    lambda number: torch.tensor([NAN, number]).conj(),
]


@pytest.mark.parametrize("made", LAYOUTS)
def test_sparse_and_complex_tensors(made):
    assert compare_tensors({"x": made(1)}, {"x": made(1)}) == {"compared": "tensors", "tensors": 1}
    assert is_same(made(1), made(1))
    with pytest.raises(ExportError, match="x differ after loading"):
        compare_tensors({"x": made(1)}, {"x": made(2)})


def test_a_tensor_that_torch_cannot_compare_is_told(monkeypatch):
    values = {"weight": torch.ones(2), "steps": 1}
    monkeypatch.setattr(torch, "equal", lambda *_: 1 / 0)
    with log_lines() as lines:
        assert compare_tensors(values, values) == {"compared": "tensors", "tensors": 1}
    assert lines == ["weight is exported, and cannot be compared after loading (ZeroDivisionError: division by zero)"]


@pytest.mark.parametrize(
    "again",
    [
        {},
        {"weight": torch.ones(2), "other": 1},
        {"weight": torch.tensor([1.0, 1.0000001])},
        {"weight": torch.ones(2, dtype=torch.float64)},
        {"weight": torch.ones(1, 2)},
        {"weight": 1},
    ],
)
def test_other_tensors(again):
    with pytest.raises(ExportError, match="does not hold what was saved"):
        compare_tensors({"weight": torch.ones(2)}, again)


def test_outputs_within_the_tolerance():
    about = compare_outputs(lambda x: x, lambda x: x * 1.0005, EXAMPLE, "onnx")
    assert about.pop("difference") == pytest.approx(5e-4, rel=1e-3)
    assert about == {"compared": "output", "tolerance": 1e-3, "any_batch_size": True}
    half = compare_outputs(lambda x: x.half(), lambda x: x.half() * 1.01, EXAMPLE, "onnx")
    assert half["tolerance"] == 2e-2


def diverged(x):
    return torch.cat([x, x * math.inf, x * math.nan])


def nested(x):
    return {"a": (x, [x + 1]), "text": "no tensor"}


# The last one changes its input.
@pytest.mark.parametrize(
    ("model", "loaded"), [(diverged, diverged), (nested, nested), (lambda x: x.mul_(2), lambda x: x * 2)]
)
def test_an_equal_output(model, loaded):
    assert compare_outputs(model, loaded, EXAMPLE, "onnx")["difference"] == 0
    assert EXAMPLE.arguments[0][0, 0] == 1


@pytest.mark.parametrize(
    ("model", "loaded"),
    [
        (lambda x: x, lambda x: x * 1.002),
        (lambda x: x, lambda x: x[0]),
        (lambda x: x, lambda x: [x, x]),
        (lambda x: x, lambda x: x * math.nan),
        (lambda x: x, lambda x: None),
        (diverged, lambda x: torch.cat([x, x, x])),
        (nested, lambda x: [x, x]),
    ],
)
def test_another_output(model, loaded):
    with pytest.raises(ExportError, match=r"exported as onnx differs from that of the model: on Example.*\[2, 2\]"):
        compare_outputs(model, loaded, EXAMPLE, "onnx")


def test_nondeterministic_model_is_not_compared():
    about = compare_outputs(lambda x: x + torch.rand(2, 2), lambda x: x, EXAMPLE, "onnx")
    assert about == {"compared": None, "reason": "the output of the model is not deterministic"}


def test_fixed_batch_size_is_reported():
    def fixed(x):
        assert len(x) == 2, "I was made for two"
        return x

    assert compare_outputs(lambda x: x, fixed, EXAMPLE, "onnx")["any_batch_size"] is False
