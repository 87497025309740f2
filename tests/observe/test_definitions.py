"""Metric definitions from names."""

import pytest

from lightning_sm import metric_definitions
from lightning_sm.errors import MetricDefinitionError


def test_from_names_exactly():
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
