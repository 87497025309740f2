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
        ([""], "'' is not the name of a metric."),
        (object, "<class 'object'> is not the name of a metric."),
        ([3], "3 is not the name of a metric."),
        (["größe"], "The metric 'größe' is not of printable ASCII characters."),
        (["a\nb"], r"The metric 'a\\nb' is not of printable ASCII characters."),
        (
            [f"m{index}" for index in range(41)],
            "There are 41 metrics, and SageMaker takes at most 40 definitions: m0, ",
        ),
        (["x" * 256], "has a name of 256 and a regular expression of "),
        (["[" * 250], "has a name of 250 and a regular expression of 5"),
    ],
)
def test_what_sagemaker_does_not_take(names, problem):
    with pytest.raises(MetricDefinitionError, match=problem.replace("(", r"\(")) as caught:
        metric_definitions(names)
    assert caught.value.hint
