"""Each trap of SageMaker's containers that can be seen from inside has its line, shown by a host in which it is set."""

import pytest

from lightning_sm._doctor import Status

# The number of the trap, what sets it, and what the doctor then says: the check, the status, a part of the text.
TRAPS = []


def trap(*numbers, check, status, text):
    """Add a trap: the function below it sets it on a host."""

    def add(set_trap):
        TRAPS.append(
            pytest.param(set_trap, check, status, text, id=f"{'-'.join(map(str, numbers))}-{set_trap.__name__}")
        )
        return set_trap

    return add


@trap(4, check="job", status=Status.ERROR, text="not among the hosts")
def host_outside_of_its_group(host):
    host.opt_ml.host("algo-1", current_host="algo-9")


@pytest.mark.parametrize(("set_trap", "check", "status", "text"), TRAPS)
def test_a_trap_has_its_line(host, set_trap, check, status, text):
    set_trap(host)
    found = host.findings(check)
    assert [each for each in found if each.status == status and text in each.text], found
    assert all(each.hint for each in found if each.status == Status.ERROR)


@pytest.mark.parametrize(("set_trap", "check", "status", "text"), TRAPS)
def test_without_the_trap_the_line_is_absent(host, set_trap, check, status, text):
    assert not [each for each in host.findings(check) if each.status == status and text in each.text]
