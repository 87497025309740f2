import pickle
from datetime import timedelta
from types import SimpleNamespace

import pytest

from lightning_sm._checkpoint import periodic
from lightning_sm._checkpoint.periodic import WhenDue, periodic_checkpoints
from lightning_sm._lightning import Namespace, collectives


class Checkpoint:
    _train_time_interval = timedelta(seconds=10)

    def __init__(self):
        self._last_time_checked = 0.0
        self.called = []

    def on_train_batch_end(self, trainer, pl_module, batch):
        self.called.append(batch)
        self._last_time_checked = periodic.time.monotonic()


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=0.0)
    now.monotonic = lambda: now.now
    monkeypatch.setattr(periodic, "time", now)
    return now


def test_one_process_saves_at_the_batch_after_which_it_is_time(clock):
    checkpoint = Checkpoint()
    save = WhenDue(checkpoint)
    for batch in range(50):
        clock.now = float(batch)
        save(SimpleNamespace(world_size=1, is_global_zero=True), None, batch)
    assert checkpoint.called == [10, 20, 30, 40]


def test_the_first_rank_decides_for_all_and_they_seldom_ask(clock, monkeypatch):
    checkpoints = [Checkpoint(), Checkpoint()]
    saves = [WhenDue(checkpoint) for checkpoint in checkpoints]
    asked = []

    def sums(trainer, values):
        # Rank 0 is called first, and says what the other one hears.
        if trainer.is_global_zero:
            asked.append([float(value) for value in values])
        else:
            assert list(values) == [False, 0]
        return asked[-1]

    monkeypatch.setattr(collectives, "sums", sums)
    for batch in range(300):
        clock.now = 0.1 * batch
        for rank, save in enumerate(saves):
            # Its own clock would have the other rank save all the time.
            checkpoints[1]._last_time_checked = -100.0
            save(SimpleNamespace(world_size=2, is_global_zero=rank == 0), None, batch)
    assert checkpoints[0].called == checkpoints[1].called
    assert 1 <= len(checkpoints[0].called) <= 3
    assert len(asked) < 30


def test_it_goes_with_the_callback_to_another_process(tmp_path):
    by_time = periodic_checkpoints([], str(tmp_path), 60.0, Namespace("pytorch_lightning"))[1]
    there = pickle.loads(pickle.dumps(by_time))
    assert there.on_train_batch_end.checkpoint is there
