import random

import pytest
import torch

from tests.faults.__main__ import _table
from tests.faults.campaign import Verdict
from tests.faults.damage import damage_newest, whole_checkpoints
from tests.faults.plan import DAMAGES, KILLS, Fault, draw


@pytest.fixture
def checkpoints(tmp_path):
    for step in (10, 20):
        torch.save({"global_step": step, "state_dict": {"weight": torch.ones(50)}}, tmp_path / f"resume-{step}.ckpt")
    return tmp_path


def test_a_seed_always_draws_the_same_fault():
    assert draw(5, mounts=True) == draw(5, mounts=True)
    faults = [draw(seed, mounts=True) for seed in range(300)]
    assert {fault.kill for fault in faults} == set(KILLS)
    assert {fault.damage for fault in faults} == set(DAMAGES)
    assert {(fault.hosts, fault.processes) for fault in faults} == {(1, 1), (1, 2), (2, 1)}


def test_what_cannot_be_had_is_not_drawn():
    faults = [draw(seed, mounts=False) for seed in range(300)]
    assert {fault.kill for fault in faults} == {"job", "rank", "host"}
    assert all(fault.hosts > 1 for fault in faults if fault.kill == "host" or fault.damage == "half-synced")


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind != "none"])
def test_a_damaged_checkpoint_is_whole_no_more(checkpoints, kind):
    for seed in range(20):
        before = (checkpoints / "resume-20.ckpt").read_bytes()
        assert damage_newest(checkpoints, kind, random.Random(seed)) == "resume-20.ckpt"
        assert whole_checkpoints(checkpoints) == {"resume-10.ckpt": 10}
        (checkpoints / "resume-20.ckpt").write_bytes(before)


def test_without_damage_or_checkpoints_nothing_is_touched(checkpoints, tmp_path):
    assert damage_newest(checkpoints, "none", random.Random(0)) is None
    assert whole_checkpoints(checkpoints) == {"resume-10.ckpt": 10, "resume-20.ckpt": 20}
    (tmp_path / "other").mkdir()
    assert damage_newest(tmp_path / "other", "empty", random.Random(0)) is None


def test_the_table_counts_what_was_lost_and_what_failed():
    def verdict(kill, damage, moments, **told):
        return Verdict(Fault(0, 1, 1, kill, damage, moments, 0, False), **told)

    verdicts = [
        verdict("job", "none", (0.1, 0.5), lost_steps=3, lost_seconds=0.24),
        verdict("job", "empty", (0.3,), lost_steps=7, lost_seconds=0.11),
        verdict("rank", "empty", (0.3,), problem="the weights differ", lost_steps=90),
    ]
    rows = [line.strip("| ").split(" | ") for line in _table(verdicts).splitlines()[3:]]
    assert rows[0] == ["job", "2", "3", "1", "0", "1", "0", "0", "2 of 2", "7", "0.2"]
    assert rows[1] == ["rank", "1", "1", "0", "0", "1", "0", "0", "0 of 1", "0", "0.0"]
    assert [row[0] for row in rows] == list(KILLS)
