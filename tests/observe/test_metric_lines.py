"""What is written comes back through the regular expression of its name, and through no other."""

import math
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_sm import metric_definitions
from lightning_sm._observe.metrics import metric_lines, metric_names, metric_regex
from lightning_sm.errors import MetricDefinitionError

_NASTY = [
    *("loss", "val_loss", "train/loss", "loss_step", "loss_epoch", "oss", "a loss", "loss b", "step", "epoch", "3"),
    *("loss=0.1", 'loss="0.1"', '"loss"', "loss;x", "a: loss", "a[0].b", "größe", "損失", "😀", "a\\b", "a\\u003d"),
    *("", " ", "a\nb", "a\tb", "metrics at step 1, epoch 2: loss=3", ".*", "(loss)", "lo.s", "x|y", "a$", "^a", "a+b"),
    *("loss/dataloader_idx_0", "lr-SGD/pg1", "a  b", " loss", "loss ", "=", "==", '"', '\\"', "'", "`", "%s", "{}"),
]
NAMES = st.one_of(st.sampled_from(_NASTY), st.text(max_size=12), st.text("los_ =\"\\/.:'", max_size=8))
VALUES = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.integers(),
    st.booleans(),
    st.sampled_from([2**53 + 1, 5e-324, 1.7976931348623157e308, 0.1, -0.0, math.pi]),
)
PREFIXES = st.sampled_from(
    [
        *("", "INFO lightning_sm: ", "[1,mpirank:0,algo-1]<stdout>:", "[1,mpirank:12,algo-1]<stderr>:loss=9 "),
        *("2026-11-22 10:00:00,123 lightning_sm INFO     ", "\x1b[34m", "Epoch 0:  50%|█| loss=0.3, v_num=0] "),
    ]
)


def found(name, line):
    return re.findall(metric_regex(name), line)


def reads_back(value, text):
    """Whether a text is the number: of double precision, or of single precision where it is of that."""
    value, read = float(value), float(text)
    single, single_read = torch.tensor([value, read]).tolist()
    return read == value or single_read == single == value


@settings(max_examples=50)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=8), st.integers(0, 10**9), st.integers(0, 999), PREFIXES)
@example({"loss": 1.0, "a loss=5 b": 2.0}, 1, 1, "")
def test_each_value_comes_back_by_its_name_and_nothing_else(metrics, step, epoch, prefix):
    written, left_out = metric_lines(metrics, step, epoch)
    assert left_out == {}
    lines = [prefix + line for line in written]
    assert metric_names("\n".join(lines)) == list(metrics)
    assert all(line.isascii() and line.isprintable() for line in written)
    for name in {*metrics, *_NASTY}:
        values = [value for line in lines for value in found(name, line)]
        if name not in metrics or not math.isfinite(metrics[name]):
            assert values == []
            continue
        (text,) = values
        assert reads_back(metrics[name], text)


@pytest.mark.parametrize(
    "line",
    [
        "loss=1.5",
        "metrics: loss=1.5",
        "step 1, epoch 2: loss=1.5",
        "metrics at step 1: loss=1",
        "progress train: epoch=0/2 step=7 | loss=0.25, val_loss=1",
    ],
)
def test_other_lines_are_not_metrics(line):
    assert found("loss", line) == []


def test_numpy_and_strings():
    numpy = pytest.importorskip("numpy")
    lines, left_out = metric_lines(
        {"a": numpy.float32(0.1), "b": numpy.int64(3), "c": "1.5", "d": None, "e": {"f": 1.0}, "g": [1.0], "h": 1j},
        1,
        2,
    )
    assert lines == ["metrics at step 1, epoch 2: a=0.1 b=3"]
    assert left_out == {"values that are no numbers": ["c", "d", "e", "g", "h"]}


def test_thousands_of_metrics_and_endless_names():
    metrics = {f"layer{index}/gradient_norm": index / 7 for index in range(3000)}
    lines, left_out = metric_lines({"x" * 256: 1.0, **metrics, "objective": 2.0}, 1, 2, first="objective")
    assert all(len(line) <= 3500 for line in lines)
    (escaped,) = metric_lines({"😀" * 255: 1.0}, 1, 2)[0]
    assert len(escaped) < 4096  # the limit of a pipe
    assert lines[0].startswith("metrics at step 1, epoch 2: objective=2 layer0/")
    assert sum(len(found(name, line)) for name in [*metrics, "objective"][:50] for line in lines) == 50
    assert {reason: len(names) for reason, names in left_out.items()} == {
        "names of more than 255 characters": 1,
        "more than 1000 scalars at once": 2001,
    }


def test_each_name_is_defined_once():
    assert [each["Name"] for each in metric_definitions(iter(["b", "a", "b"]))] == ["b", "a"]
    assert [each["Name"] for each in metric_definitions("val_loss")] == ["val_loss"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "No metric was found to define."),
        (["größe"], "The metric 'größe' is not of printable ASCII characters."),
        (["a\nb"], r"The metric 'a\\nb' is not of printable ASCII characters."),
    ],
)
def test_what_cloudwatch_does_not_take(names, problem):
    with pytest.raises(MetricDefinitionError, match=problem) as caught:
        metric_definitions(names)
    assert caught.value.hint
