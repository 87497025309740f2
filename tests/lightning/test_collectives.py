"""At which steps flags are reduced. What ranks agree on is in ``tests/processes`` and ``tests/sharded``."""

import itertools
from types import SimpleNamespace

import pytest

from lightning_sm._lightning import collectives
from lightning_sm._lightning.collectives import ThrottledAllReduce


@pytest.mark.parametrize(
    ("seconds", "intervals"),
    [([1.0] * 3, [1, 1, 1]), ([0.0101] * 7, [2, 4, 8, 16, 24, 24, 24]), ([0.01] * 3 + [5.0], [2, 4, 8, 1])],
    ids=["slow", "fast", "fast, then slow"],
)
def test_steps_between_two_all_reduces(monkeypatch, seconds, intervals):
    # Each but the first is of as many steps as the one before has said.
    passed = [steps * seconds_per_step for steps, seconds_per_step in zip([1, *intervals], seconds)]
    clock = itertools.accumulate([0.0, *passed])
    monkeypatch.setattr(collectives, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reduced = ThrottledAllReduce()
    assert [reduced.next_interval() for _ in intervals] == intervals


def test_all_ranks_reduce_at_the_same_steps_and_find_the_same(monkeypatch):
    ranks = [(ThrottledAllReduce(), SimpleNamespace(world_size=2, is_global_zero=rank == 0)) for rank in range(2)]
    reduced, asked = [], []
    for _ in range(100):
        sent = []
        monkeypatch.setattr(collectives, "sums", lambda trainer, values, sent=sent: sent.append(values) or [1, 5])
        found = [each.any_true(trainer, [lambda: asked.append(1) or True]) for each, trainer in ranks]
        assert found[0] == found[1]
        assert len(sent) in (0, 2)
        reduced.append(len(sent))
    assert reduced.count(2) == 20
    assert len(asked) == 40  # twenty times on two ranks
