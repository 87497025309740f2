from types import SimpleNamespace

from lightning_sm._lightning import collectives
from lightning_sm._lightning.collectives import StepInterval, ThrottledAllReduce


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def steps_of(seconds_per_step, looks):
    clock = Clock()
    interval, steps, seen = StepInterval(clock), 1, []
    for _ in range(looks):
        clock.now += steps * seconds_per_step
        steps = interval.next()
        seen.append(steps)
    return seen


def test_slow_steps_are_looked_at_one_by_one():
    assert steps_of(1.0, 3) == [1, 1, 1]


def test_fast_steps_are_looked_at_ever_more_rarely_up_to_a_quarter_of_a_second():
    assert steps_of(0.0101, 7) == [2, 4, 8, 16, 24, 24, 24]


def test_very_fast_steps_are_looked_at_all_the_same():
    assert steps_of(1e-9, 9)[-1] == 64


def test_steps_that_become_slow_are_looked_at_soon():
    clock = Clock()
    interval = StepInterval(clock)
    for _ in range(3):
        clock.now += 0.01
        steps = interval.next()
    assert steps == 8
    clock.now += 8 * 5.0
    assert interval.next() == 1


class World:
    """Ranks whose sums are taken in lockstep: first each says what it adds, then all hear the sum."""

    def __init__(self, monkeypatch, size):
        self.checks = [ThrottledAllReduce() for _ in range(size)]
        self.trainers = [SimpleNamespace(world_size=size, is_global_zero=rank == 0) for rank in range(size)]
        self.total = None
        monkeypatch.setattr(collectives, "sums", self._sums)

    def _sums(self, trainer, values):
        self.said.append(list(values))
        return self.total or list(values)

    def look(self, reasons):
        """Every rank looks, and how many of them took part in a sum."""
        lefts = [check._remaining for check in self.checks]
        clocks = [(check._interval._last, check._interval._steps) for check in self.checks]
        self.said, self.total = [], None
        for check, trainer, reason in zip(self.checks, self.trainers, reasons):
            check.any_true(trainer, reason)
        parts = len(self.said)
        if parts:
            self.total = [sum(column) for column in zip(*self.said)]
        for check, left, clock in zip(self.checks, lefts, clocks):
            check._remaining = left
            check._interval._last, check._interval._steps = clock
        found = [check.any_true(trainer, reason) for check, trainer, reason in zip(self.checks, self.trainers, reasons)]
        return parts, found


def test_all_ranks_look_at_the_same_step_and_find_the_same(monkeypatch):
    world = World(monkeypatch, 3)
    nothing = [(False, False)] * 3
    parts = [world.look(nothing)[0] for _ in range(200)]
    assert set(parts) == {0, 3}
    assert 0 < parts.count(3) < 100
    late = [(False, False), (False, False), (True, False)]
    for _ in range(100):
        took_part, found = world.look(late)
        assert len(set(found)) == 1
        if took_part:
            break
    assert found[0] == (True, False)
