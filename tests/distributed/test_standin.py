"""The stand-in for SMDDP really refuses what AWS documents as unsupported."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.processes import STANDINS

_SCRIPT = """
import json, torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp

store = dist.HashStore()
dist.init_process_group("smddp", store=store, rank=0, world_size=1)
tensor = torch.ones(3, dtype=torch.int64)

def said(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
    return None

from torch.nn.parallel import DistributedDataParallel

def scatter():
    dist.reduce_scatter(torch.empty_like(tensor), [tensor])

found = {
    "sum": said(dist.all_reduce, tensor),
    "barrier": said(dist.barrier),
    "average": said(dist.all_reduce, tensor, op=dist.ReduceOp.AVG),
    "average on one rank": said(dist.reduce, tensor, 0, op=dist.ReduceOp.AVG),
    "average in parts": said(dist.reduce_scatter, tensor, [tensor], op=dist.ReduceOp.AVG),
    "device_ids": said(dist.barrier, device_ids=[0]),
    "backend": dist.get_backend(),
    "sum in parts": said(scatter),
    "group before DDP": said(dist.new_group, [0]),
    "DDP after a group": said(DistributedDataParallel, torch.nn.Linear(1, 1)),
    "calls": list(torch_smddp.calls),
}
torch_smddp.calls.clear()
DistributedDataParallel(torch.nn.Linear(1, 1))
found["group"] = said(dist.new_group, [0])
found["gloo group"] = said(dist.new_group, backend="gloo")
print(json.dumps(found))
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.new_group([0])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def said():
    environ = {**os.environ, "PYTHONPATH": str(STANDINS), "SM_CURRENT_INSTANCE_TYPE": "ml.p4de.24xlarge"}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, env=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    # torch 2.8 reports gloo's connections on the standard output, too.
    (answer,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return json.loads(answer)


def test_notes_what_went_through(said):
    assert said["backend"] == "smddp"
    assert said["sum"] is said["barrier"] is None
    assert ["allreduce", "torch.int64", 3] in said["calls"]
    assert "barrier" in [name for name, _, _ in said["calls"]]


def test_jobs_that_shard_a_model_may_create_groups_and_reduce_in_parts(said):
    assert said["group before DDP"] is said["sum in parts"] is None
    assert ["new_group", "smddp", 1] in said["calls"]
    assert ["reduce_scatter", "torch.int64", 3] in said["calls"]


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ("average", "does not support: ReduceOp.AVG"),
        ("average on one rank", "does not support: ReduceOp.AVG"),
        ("average in parts", "does not support: ReduceOp.AVG"),
        ("group", "does not support further process groups (new_group) in DDP jobs"),
        ("gloo group", "does not support further process groups (new_group) in DDP jobs"),
        ("DDP after a group", "does not support further process groups (new_group) in DDP jobs"),
        ("device_ids", "does not support device_ids in barriers"),
    ],
)
def test_refuses(said, call, refusal):
    assert said[call] == f"SMDDP stand-in: SMDDP {refusal}"
