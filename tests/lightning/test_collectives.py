import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning import collectives
from lightning_sm._lightning.collectives import (
    StepInterval,
    ThrottledAllReduce,
    all_true,
    any_true,
    broadcast,
    destroy_at_exit,
    sums,
)
from lightning_sm._lightning.legacy import strategy_of
from tests.helpers.processes import Job


@pytest.mark.full
def test_two_hosts_agree(tmp_path):
    first, second = Job(tmp_path, __file__).torchrun(2, 1).results(2)
    assert first["sums"] == [3, 0.5]
    assert first["any"] == [True, True, False]
    assert first["all"] == [True, False, False]
    assert first["broadcast"] == "of rank 0"
    assert first["throttled"] == [False, True, False]
    assert second == first


def _on_each_host(folder):
    """What this process finds out together with the other one, as ``rank-N.json`` in a folder."""
    rank = int(os.environ["RANK"])
    world = {"num_nodes": 2, "devices": 1, "strategy": "ddp", "plugins": [lightning_sm.SageMakerEnvironment()]}
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **world)
    strategy_of(trainer).setup_environment()
    found = {
        "sums": sums(trainer, [rank + 1, rank / 2]),
        "any": [any_true(trainer, flag) for flag in (rank == 0, rank == 1, False)],
        "all": [all_true(trainer, flag) for flag in (True, rank == 0, rank == 1)],
        "broadcast": broadcast(trainer, f"of rank {rank}"),
        "throttled": ThrottledAllReduce().any_true(trainer, [lambda: False, lambda: rank == 1, lambda: False]),
    }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # At once, torch 2.4 may deadlock in it: https://github.com/pytorch/pytorch/pull/154976
    destroy_at_exit()


@pytest.mark.parametrize(
    ("seconds", "intervals"),
    [([1.0] * 3, [1, 1, 1]), ([0.0101] * 7, [2, 4, 8, 16, 24, 24, 24]), ([0.01] * 3 + [5.0], [2, 4, 8, 1])],
    ids=["slow", "fast", "fast, then slow"],
)
def test_steps_between_two_all_reduces(seconds, intervals):
    clock = [0.0]
    interval, steps, found = StepInterval(lambda: clock[0]), 1, []
    for seconds_per_step in seconds:
        clock[0] += steps * seconds_per_step
        steps = interval.next()
        found.append(steps)
    assert found == intervals


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


if __name__ == "__main__":
    _on_each_host(*sys.argv[1:])
