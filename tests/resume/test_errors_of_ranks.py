"""An error of one rank, such as a storage that cannot be read, is an error on all: none waits in a collective."""

import threading
from types import SimpleNamespace
from typing import Any, List

import pytest

from lightning_sm._resume import choose as choosing
from lightning_sm._resume import sharded_files
from lightning_sm._resume.choose import LocalFiles, ResumeMode, choose
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.series import Series
from lightning_sm.errors import CheckpointError

WORLD = 3


class Ranks:
    """Threads that stand for ranks, each on a host of its own, with collectives that wait for all of them."""

    def __init__(self, monkeypatch):
        self.barrier = threading.Barrier(WORLD, timeout=20)
        self.values = [None] * WORLD
        for module in (choosing, sharded_files):
            monkeypatch.setattr(module, "gather_objects", self.gather)
        monkeypatch.setattr(choosing, "broadcast", lambda trainer, value, src=0: self.gather(trainer, value)[src])

    def gather(self, trainer, value):
        self.values[trainer.global_rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found

    def run(self, function):
        """What each rank returned or raised."""
        results: List[Any] = [None] * WORLD

        def act(rank):
            trainer = SimpleNamespace(
                global_rank=rank, local_rank=0, world_size=WORLD, num_nodes=WORLD, is_global_zero=rank == 0
            )
            try:
                results[rank] = function(trainer)
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=act, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results


@pytest.mark.parametrize("failing", range(WORLD))
def test_records_that_one_host_cannot_read(tmp_path, monkeypatch, failing):
    class Broken(Series):
        def records(self):
            raise OSError(5, "Input/output error")

    def choose_on(trainer):
        kind = Broken if trainer.global_rank == failing else Series
        series = kind(str(tmp_path), "train-0a1b2c", 0)
        return choose(trainer, series, ProgramIdentity("job-1"), ModelIdentity("Net"), ResumeMode.NEVER, LocalFiles())

    results = Ranks(monkeypatch).run(choose_on)
    assert [type(each) for each in results] == [CheckpointError] * WORLD
    assert {f"global_rank {failing}: OSError: [Errno 5] Input/output error" in str(each) for each in results} == {True}


def test_an_error_of_the_program_stays_its_own(monkeypatch):
    def act(trainer):
        return sharded_files.raise_on_all_ranks(trainer, "x", lambda: {}["a"] if trainer.global_rank == 1 else "fine")

    results = Ranks(monkeypatch).run(act)
    assert [type(each) for each in results] == [CheckpointError, KeyError, CheckpointError]
