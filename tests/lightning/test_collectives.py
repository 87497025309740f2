import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning.collectives import ThrottledAllReduce, all_true, any_true, broadcast, destroy_at_exit, sums
from lightning_sm._lightning.compat_strategies import strategy_of
from tests.helpers.environ import torchrun, without_launcher
from tests.helpers.processes import ROOT, local_rendezvous


def _trainer(**arguments):
    return pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, **arguments)


def test_a_single_process_agrees_with_itself():
    trainer = _trainer()
    assert broadcast(trainer, {"name": "last.ckpt"}) == {"name": "last.ckpt"}
    assert all_true(trainer, True)
    assert any_true(trainer, True)
    assert not all_true(trainer, False)
    assert not any_true(trainer, False)


@pytest.mark.processes
@pytest.mark.slow
def test_two_hosts_agree(tmp_path):
    port = local_rendezvous()[-1]
    environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__, str(tmp_path), port]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first["sums"] == [3, 0.5]
    assert first["any"] == [True, True, False]
    assert first["all"] == [True, False, False]
    assert first["broadcast"] == "of rank 0"
    assert first["look"] == [False, True, False]
    assert second == first


def _as_two_hosts(folder, port):
    """What each of two processes finds out together with the other, as ``rank-N.json`` in a folder."""
    # Before anything has started a thread.
    child = os.fork()
    # Those that do not agree would wait for each other.
    signal.alarm(60)
    rank = 1 if child == 0 else 0
    os.environ.update(torchrun(rank, 2, 0, 1, rank, nodes=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
    trainer = _trainer(num_nodes=2, strategy="ddp", plugins=[lightning_sm.SageMakerEnvironment()])
    strategy_of(trainer).setup_environment()
    found = {
        "sums": sums(trainer, [rank + 1, rank / 2]),
        "any": [any_true(trainer, flag) for flag in (rank == 0, rank == 1, False)],
        "all": [all_true(trainer, flag) for flag in (True, rank == 0, rank == 1)],
        "broadcast": broadcast(trainer, f"of rank {rank}"),
        "look": ThrottledAllReduce().any_true(trainer, [False, rank == 1, False]),
    }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # At once, torch 2.4 may deadlock in it: https://github.com/pytorch/pytorch/pull/154976
    destroy_at_exit()
    if child:
        _, status = os.waitpid(child, 0)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(_as_two_hosts(*sys.argv[1:]))
