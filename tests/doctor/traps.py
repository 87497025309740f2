"""The traps of SageMaker's containers: what sets each of them on a host, and the line of the doctor that shows it."""

import pytest

__all__ = ["parametrize_traps", "trap"]

_TRAPS = []


def trap(*numbers, check, status, text):
    """Add a trap.

    Args:
        numbers: Its numbers in the list of traps.
        check: The check that sees it.
        status: How it is judged.
        text: A part of the finding's text, which is absent without the trap.
    """

    def add(set_trap):
        name = f"{'-'.join(map(str, numbers))}-{set_trap.__name__.strip('_')}"
        _TRAPS.append(pytest.param(set_trap, check, status, text, id=name))
        return set_trap

    return add


def parametrize_traps():
    """Run a test with each trap that has been added so far."""
    return pytest.mark.parametrize(("set_trap", "check", "status", "text"), list(_TRAPS))
