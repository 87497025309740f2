import json
import random
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from tools import ROOT
from tools.faults.campaign import (
    Reference,
    _collect,
    _damage,
    _positions,
    _uploaded,
    play,
    reference,
)
from tools.faults.damage import Damaged, damage_newest, files_in_part
from tools.faults.job import Job
from tools.faults.plan import (
    DAMAGES,
    KILLS,
    LIBRARY,
    SHARD_DAMAGES,
    WHERES,
    Fault,
    Moment,
    draw,
)
from tools.faults.series import Series
from tools.faults.server import Server

NAMES = sorted(LIBRARY)


PROGRAM = "train-0a1b2c"


def _save(fit, step, number, shards="", name=None):
    """One save in the folder of a fit: a file, or shards of two ranks as torch or DeepSpeed names them."""
    fit.mkdir(parents=True, exist_ok=True)
    name = name or f"step-{step}"
    content = fit / f"{name}.ckpt"
    if shards:
        inside = content / "checkpoint" if shards == "deepspeed" else content
        inside.mkdir(parents=True)
        for rank in (0, 1):
            shard = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" if shards == "deepspeed" else f"__{rank}_0.distcp"
            (inside / shard).write_bytes(bytes([number, step, rank] * 50))
        torch.save(
            {"global_step": step, "number": number},
            inside / ("mp_rank_00_model_states.pt" if inside != content else "meta.pt"),
        )
    else:
        torch.save({"global_step": step, "state_dict": {"weight": torch.ones(50)}}, content)
    paths = sorted(path for path in (content, *content.rglob("*")) if path.is_file())
    files = [
        {"name": str(path.relative_to(fit)), "size": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}
        for path in paths
    ]
    (fit / f"{name}.json").write_text(json.dumps({"number": number, "step": step, "files": files}))


def _end(fit):
    (fit / "fit.json").write_text('{"steps": 20, "ended": {"max_epochs": 4}}\n')


@pytest.fixture
def checkpoints(tmp_path):
    """A fit that has ended, and one that goes on."""
    root = tmp_path / "checkpoints"
    for fit in (0, 1):
        for number, step in enumerate((10, 20)):
            _save(root / PROGRAM / f"fit-{fit}", step, number)
    _end(root / PROGRAM / "fit-0")
    return root


def _whole(root):
    return {(save.fit[1], save.step) for save in Series(root).whole()}


def test_a_seed_always_draws_the_same_fault():
    assert draw(5, NAMES, mounts=True) == draw(5, NAMES, mounts=True)
    faults = [draw(seed, NAMES, mounts=True) for seed in range(300)]
    assert {fault.kill for fault in faults} == set(KILLS)
    assert {fault.damage for fault in faults} == set(DAMAGES)
    assert {moment.where for fault in faults for moment in fault.moments} == set(WHERES)
    assert {fault.setup for fault in faults} == set(NAMES)
    assert {(fault.hosts, fault.processes) for fault in faults} == {(1, 1), (1, 2), (2, 1)}


_OF_SAVES = [("", kind) for kind in DAMAGES] + [
    (shards, kind) for shards in ("torch", "deepspeed") for kind in (*DAMAGES, *SHARD_DAMAGES)
]
_OF_SAVES = [each for each in _OF_SAVES if each[1] not in ("none", "fit record truncated", "shard doubled")]


@pytest.mark.parametrize(("shards", "kind"), _OF_SAVES)
def test_a_damaged_save_is_whole_no_more(tmp_path, shards, kind):
    for seed in range(20):
        root = tmp_path / str(seed)
        # The newest fit has fewer steps, and the newest save of it has no more steps than the one before.
        _save(root / PROGRAM / "fit-2", 50, 4, shards)
        for number, name in enumerate(("step-20", "step-20-2")):
            _save(root / PROGRAM / "fit-10", 20, number, shards, name)
        damaged = damage_newest(root, kind, random.Random(seed))
        assert damaged == Damaged(f"{PROGRAM}/fit-10/step-20-2.ckpt", (PROGRAM, 10), had_ended=False)
        left = [save.record.name for save in Series(root).whole() if save.fit[1] == 10]
        assert left == ["step-20.json"]
        assert (2, 50) in _whole(root)


def test_the_record_of_the_newest_fit_that_has_ended_is_truncated(checkpoints):
    path = checkpoints / PROGRAM / "fit-0" / "fit.json"
    content = path.read_bytes()
    for seed in range(20):
        damaged = damage_newest(checkpoints, "fit record truncated", random.Random(seed))
        assert damaged == Damaged(f"{PROGRAM}/fit-0/fit.json", (PROGRAM, 0), had_ended=True)
        assert Series(checkpoints).ended == set()
        assert files_in_part(checkpoints) == [path]
        path.write_bytes(content)
    assert Series(checkpoints).ended == {(PROGRAM, 0)}


def test_a_record_says_what_is_there_in_part(checkpoints):
    fit = checkpoints / PROGRAM / "fit-1"
    # An older save may be about to be removed.
    (fit / "step-10.ckpt").unlink()
    assert files_in_part(checkpoints) == []
    (fit / "step-20.ckpt").write_bytes(b"half")
    assert files_in_part(checkpoints) == [fit / "step-20.ckpt"]
    (fit / "step-20.ckpt").unlink()
    assert files_in_part(checkpoints) == [fit / "step-20.ckpt"]
    assert files_in_part(checkpoints, of_all_hosts=False) == []
    (fit / "step-10.json").unlink()
    (fit / "step-20.json").write_text('{"number": 1, "st')
    assert files_in_part(checkpoints) == [fit / "step-20.json"]


EXPECTED = Reference([{"steps": 20}, {"steps": 30}, {"steps": 8}], [0, 20, 0], [], frozenset(), {}, {})


@pytest.mark.parametrize("kind", ["missing", "bit-flipped", "record missing", "half-synced"])
def test_hosts_of_a_sharded_job_get_all_shards_and_the_same_damage(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(Job, "fresh_container", lambda self, name: {})
    job = Job(SimpleNamespace(start=lambda *_, **__: None), tmp_path / "job", "plain", 2, 1, {}, strategy="fsdp")
    job.start()
    for rank, name in enumerate(job.names):
        for number, step in enumerate((10, 15)):
            _save(job.checkpoints(name) / PROGRAM / "fit-0", step, number, "torch")
            (job.checkpoints(name) / PROGRAM / "fit-0" / f"step-{step}.ckpt" / f"__{1 - rank}_0.distcp").unlink()
    assert _uploaded(job, EXPECTED) == (0, 15)
    _collect(job, random.Random(0))
    assert _positions(job, EXPECTED) == {(0, 15)}
    damaged = _damage(job, kind, random.Random(1))
    assert damaged.name == f"{PROGRAM}/fit-0/step-15.ckpt"
    assert _positions(job, EXPECTED) == ({(0, 15), (0, 10)} if kind == "half-synced" else {(0, 10)})
    first, second = (job.checkpoints(name) for name in job.names)
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.*") if path.is_file()}
        for root in (first, second)
    ]
    assert (files[0] == files[1]) == (kind != "half-synced")


FAULT = Fault(0, "plain", 1, 1, "job", "none", (Moment("step", 0.3),), 0, False, 0)


@pytest.fixture(scope="module")
def server():
    made = Server(installed_namespaces()[0].name, str(ROOT))
    yield made
    made.end()


@pytest.mark.full
def test_an_end_that_differs_is_told(server):
    expected = reference(server, "validation_within_epochs", 1, 1)
    fault = replace(FAULT, setup="validation_within_epochs", moments=(Moment("validation", 0.4),))
    verdict = play(server, fault, expected)
    assert (verdict.problem, verdict.times) == (None, 1)
    fits = [{**expected.fits[0], "exported": "0"}]
    other = replace(expected, fits=fits, metrics=expected.metrics | {(0, 1, "a", "2")}, files={"gone.pt": "1"})
    problem = play(server, fault, other).problem
    assert f"exported of fit 0 {expected.fits[0]['exported']}, not 0" in problem
    assert "file gone.pt: None, not 1" in problem
    assert "1 values were not logged, such as [(0, 1, 'a', '2')]" in problem
