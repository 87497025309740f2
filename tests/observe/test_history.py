import math
import pickle
import random

import pytest
import torch

from lightning_sm._observe.history import MAX_CURVE_POINTS, MAX_CURVES, MAX_POINTS, Attempt, History, Kind


def curve_of(history, name="loss"):
    return next(curve for curve in history.curves() if curve.name == name)


@pytest.mark.parametrize("size", [5, 2_000, 2_001, 20_003])
def test_of_many_points_ends_and_spikes_remain(size):
    history, generator = History(), random.Random(size)
    spike, hole = size // 3, 2 * size // 3
    for step in range(size):
        history.add("loss", step, 9.0 if step == spike else -9.0 if step == hole else generator.random())
    curve = curve_of(history)
    points = dict(zip(curve.steps, curve.values))
    assert len(points) <= MAX_CURVE_POINTS
    assert points[spike] == 9.0
    assert points[hole] == -9.0
    assert {0, size - 1} <= set(points)
    assert points[size - 1] == curve.last
    assert curve.steps == sorted(curve.steps)
    assert curve.count == size


def test_memory_is_bounded_however_many_points_and_names_there_are():
    history = History()
    for step in range(60):
        for number in range(1_500):
            history.add(f"metric {number}", step, step)
    kept = sum(len(curve.values) for curve in history._curves.values())
    assert kept <= 2 * MAX_POINTS
    assert sum(len(curve.values) for curve in history.curves()) <= MAX_POINTS
    assert len(history.curves()) == MAX_CURVES
    assert history.num_left_out == 500
    history.add("SGD", 60, 0.1, Kind.LEARNING_RATE)
    history.add("SGD", 60, 0.2)  # a metric of the same name is left out, as those beyond the limit
    assert (curve_of(history, "SGD").kind, curve_of(history, "SGD").last) == (Kind.LEARNING_RATE, 0.1)
    assert len(pickle.dumps(history.to_plain())) < 700_000


@pytest.mark.parametrize("value", ["text", {"a": 1}, None, [1, 2], torch.ones(3), object(), 1 << 2_000])
def test_what_is_no_number_is_left_out(value):
    history = History()
    history.add("bad", 1, value)
    history.add("good", 1, torch.tensor([2.5]))
    assert [curve.name for curve in history.curves()] == ["good"]
    assert history.num_left_out == 1


def test_a_history_continues_after_it_was_saved_as_plain_values(tmp_path):
    history = History()
    history.add_attempt(Attempt(1.5e9))
    for step in range(5_000):
        history.add("loss", step, math.sin(step))
    history.add("bad", 7, math.nan)
    history.add("SGD", 7, 0.1, Kind.LEARNING_RATE)
    torch.save({"history": history.to_plain()}, tmp_path / "x.ckpt")
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)
    continued = History.from_plain(saved["history"])
    # NaN is not equal to itself.
    assert repr(continued.curves()) == repr(history.curves())
    assert continued.attempts == history.attempts
    continued.add("loss", 5_000, 5.0)
    assert (curve_of(continued).count, curve_of(continued).steps[-1]) == (5_001, 5_000)
