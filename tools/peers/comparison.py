"""Compares the outcomes of Lightning's tests with and without us, and both with what is expected."""

from dataclasses import dataclass, field
from typing import Dict, List, Mapping

__all__ = ["Comparison", "compare"]

_ABSENT = "absent"


@dataclass
class Comparison:
    """How outcomes differ.

    Args:
        expected: Tests that end differently with us, for a reason that we know.
        unexpected: Tests that end differently with us, and how; each is a bug of ours or wants a reason.
        settled: Expected differences that are none, and why; they must go from the list.
        failed_alone: Tests that fail without us, so that they say nothing about us.
    """

    expected: List[str] = field(default_factory=list)
    unexpected: Dict[str, str] = field(default_factory=dict)
    settled: Dict[str, str] = field(default_factory=dict)
    failed_alone: List[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether all differences are expected and all that is expected differs."""
        return not self.unexpected and not self.settled


def compare(alone: Mapping[str, str], with_us: Mapping[str, str], expected: Mapping[str, str]) -> Comparison:
    """Compare the outcomes of one suite.

    Args:
        alone: The outcome of each test with Lightning's own classes.
        with_us: The outcome of each test with ours.
        expected: The tests whose outcomes are known to differ, each with the reason.
    """
    found = Comparison(failed_alone=[test for test, outcome in alone.items() if outcome == "failed"])
    for test in [*alone, *(test for test in with_us if test not in alone)]:
        before, after = alone.get(test, _ABSENT), with_us.get(test, _ABSENT)
        if before == "failed" or before == after:
            continue
        if test in expected:
            found.expected.append(test)
        else:
            found.unexpected[test] = f"{before} -> {after}"
    for test in expected:
        if test not in alone and test not in with_us:
            found.settled[test] = "there is no such test"
        elif alone.get(test) == with_us.get(test) == "passed":
            found.settled[test] = "it passes with us, too"
    return found
