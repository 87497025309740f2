"""Two processes with the options of ``SMDDPStrategy`` for communication: what they learn, send, save and resume."""

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job
from tests.processes.train_communication import KILLED

_SCRIPT = "tests.processes.train_communication"
_FIRST = installed_namespaces()[0]
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """Where the first job leaves what was killed, for the second one."""
    return tmp_path_factory.mktemp("saves")


@pytest.fixture(scope="module")
def job(tmp_path_factory, saves):
    return Job(tmp_path_factory.mktemp("killed"), _SCRIPT, _FIRST.name, saves, "killed", timeout=280).torchrun(1, 2)


@pytest.mark.parametrize("name", ["default", "auto buckets"])
def test_weights_are_those_of_plain_ddp_bit_for_bit_after_200_steps(ranks, name):
    for rank in ranks:
        assert rank[name]["weights"] == rank["plain"]["weights"]
        assert (rank[name]["steps"], rank[name]["metrics"]) == (200, rank["plain"]["metrics"])


def test_gradients_that_a_program_keeps_are_those_of_plain_ddp(ranks):
    for rank in ranks:
        assert rank["default, two losses"]["weights"] == rank["plain, two losses"]["weights"]


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_are_sent_in_half_of_the_bytes(ranks, name):
    for rank in ranks:
        sent = rank[name]["sent"]
        assert {dtype for _, dtype in sent} == {{"bf16": "torch.bfloat16", "fp16": "torch.float16"}[name]}
        assert sum(size for size, _ in sent) == pytest.approx(30 * 2 * rank[name]["parameters"], rel=0.01)
        assert rank[name]["weights"] != rank["default"]["weights"]
        assert rank[name]["own_weights"] == 0


@pytest.mark.parametrize("name", ["powersgd", "powersgd in one bucket"])
def test_powersgd_sends_little_after_its_warm_up(ranks, name):
    for rank in ranks:
        assert rank[name]["weights"] == ranks[0][name]["weights"] != rank["default"]["weights"]
        assert rank[name]["own_weights"] == 0
        sent = sum(size for size, _ in rank[name]["sent"]) / rank[name]["parameters"] / 4
        # Four steps as they are, then matrices of 216 x 160, 160 x 160 and smaller ones by those of rank 2.
        assert 4 < sent < 4 + 26 / 20


def test_local_steps_average_the_weights_every_four_steps_before_a_validation_and_at_the_end(ranks):
    # Two batches a step, five steps with DDP and validations after each five. Of the 25 local steps six end in an
    # average, so 19 end with own weights; so does the first batch of the next step, but in the last and after three
    # validations.
    for rank in ranks:
        assert rank["local"]["own_weights"] == 19 + 19 - 1 - 3
        assert rank["local"]["weights"] == ranks[0]["local"]["weights"] == rank["local"]["saved"]
        # Of six validations four begin with own weights; the last save and the end find their average.
        assert sum(dtype == "torch.float32" for _, dtype in rank["local"]["sent"]) == 5 + 6 + 4


def test_all_processes_send_as_the_first_one_has_chosen_after_fifteen_steps(job, ranks):
    assert "Never chosen, as it changes what is learned: local_steps=16, " in job.output
    for rank in ranks:
        assert rank["auto"]["weights"] == ranks[0]["auto"]["weights"] != rank["default"]["weights"]
        assert (rank["auto"]["own_weights"], rank["auto"]["steps"]) == (0, 30)
        dtypes = [dtype for _, dtype in rank["auto"]["sent"]]
        # Fifteen steps, sums that are timed, and fifteen steps of several buckets.
        assert set(dtypes[:15]) == {"torch.float32"}
        assert dtypes.count("torch.float32") < 15 + 15
        assert set(dtypes[-30:]) == {"torch.bfloat16"}


def test_outer_steps_give_the_weights_of_diloco_written_by_hand(ranks):
    for rank in ranks:
        assert rank["linear"]["found"] == pytest.approx(rank["linear"]["expected"], rel=1e-4, abs=1e-6)
        assert rank["outer"]["own_weights"] == rank["outer"]["steps"] - 5 - 6 - 3 + 3
        assert rank["outer"]["weights"] == ranks[0]["outer"]["weights"] == rank["outer"]["saved"]
        assert rank["outer"]["weights"] != rank["local"]["weights"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, saves, ranks):
    """What each rank found in new processes, which resume what was killed."""
    return Job(tmp_path_factory.mktemp("resumed"), _SCRIPT, _FIRST.name, saves, "resumed").torchrun(1, 2).results(2)


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_job_ends_with_the_weights_of_one_that_was_not(ranks, resumed, name):
    for rank, whole in zip(resumed, ranks):
        assert rank[name]["resumed"]
        assert (rank[name]["steps"], rank[name]["metrics"]) == (30, whole[name]["metrics"])
        assert rank[name]["weights"] == whole[name]["weights"]
