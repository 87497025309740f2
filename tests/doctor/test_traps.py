"""Each trap of SageMaker's containers that can be seen from inside has its line, shown by a host in which it is set."""

from lightning_sm._doctor import Status
from tests.doctor import traps_of_jobs, traps_of_machines  # noqa: F401  # add their traps
from tests.doctor.traps import parametrize_traps


@parametrize_traps()
def test_a_trap_has_its_line(host, set_trap, check, status, text):
    set_trap(host)
    found = host.findings(check)
    assert [each for each in found if each.status == status and text in each.text], found
    assert all(each.hint for each in found if each.status != Status.OK), "what to do is missing"


@parametrize_traps()
def test_without_the_trap_the_line_is_absent(host, set_trap, check, status, text):
    assert not [each for each in host.findings(check) if each.status == status and text in each.text]
