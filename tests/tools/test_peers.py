"""How ``python -m tools.peers`` judges what Lightning's tests found."""

import pytest

from tools.peers.comparison import compare
from tools.peers.plugin import name_alone
from tools.peers.suites import EXPECTED, SUITES

_REASONS = {"f.py::known": "ours says it otherwise"}


@pytest.mark.parametrize(
    ("alone", "with_us"),
    [
        ({"f.py::a": "passed"}, {"f.py::a": "failed"}),
        ({"f.py::a": "passed"}, {"f.py::a": "skipped"}),
        ({"f.py::a": "xfailed"}, {"f.py::a": "xpassed"}),
        ({"f.py::a": "passed"}, {}),
        ({}, {"f.py": "failed"}),
    ],
)
def test_unexpected_difference(alone, with_us):
    comparison = compare(alone, with_us, {})
    assert not comparison.is_good
    assert list(comparison.unexpected) == [*alone, *with_us][:1]


def test_what_is_no_difference_or_an_expected_one():
    same = {"f.py::a": "passed", "f.py::b": "skipped", "f.py::c": "xfailed"}
    known, alone = {"f.py::known": "passed"}, {"f.py::alone": "failed"}
    comparison = compare(
        {**same, **known, **alone}, {**same, "f.py::known": "failed", "f.py::alone": "passed"}, _REASONS
    )
    assert comparison.is_good
    assert (comparison.expected, comparison.failed_alone) == ([*known], [*alone])


def test_expected_differences_are_in_suites():
    paths = {suite.path for suite in SUITES}
    assert {test.partition("::")[0] for test in EXPECTED} <= paths
    assert all(EXPECTED.values())


@pytest.mark.parametrize(
    ("with_us", "alone"),
    [
        ("f.py::test_a[1-ddp-SMDDPStrategy]", "f.py::test_a[1-ddp-DDPStrategy]"),
        ("f.py::test_a[SMDDPStrategy-x-SageMakerEnvironment]", "f.py::test_a[DDPStrategy-x-LightningEnvironment]"),
        ("f.py::test_SMDDPStrategy[OwnSMDDPStrategy]", "f.py::test_SMDDPStrategy[OwnSMDDPStrategy]"),
    ],
)
def test_a_test_has_one_name(with_us, alone):
    assert name_alone(with_us) == alone
