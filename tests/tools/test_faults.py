import json
import os
import random
import signal
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from tests.helpers.sharded import KINDS
from tools import ROOT
from tools.faults.__main__ import _end as _end_of
from tools.faults.__main__ import _table
from tools.faults.campaign import (
    DIFFERS,
    Reference,
    Verdict,
    _collect,
    _damage,
    _lost,
    _positions,
    _uploaded,
    play,
    reference,
)
from tools.faults.damage import Damaged, damage_newest, files_in_part
from tools.faults.job import Job
from tools.faults.plan import (
    ALONE,
    DAMAGES,
    IN_ONE_FILE,
    KILLS,
    KNOWN,
    LIBRARY,
    SHARD_DAMAGES,
    SHARDED_SETUPS,
    WHERES,
    Fault,
    Moment,
    draw,
)
from tools.faults.programs import PARTS
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


@pytest.fixture(params=["", "torch", "deepspeed"])
def shards(request):
    return request.param


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
    worlds = [(fault.hosts, fault.processes) for fault in faults]
    assert set(worlds) == {(1, 1), (1, 2), (2, 1)}
    assert 80 <= 300 - worlds.count((1, 1)) <= 120


def test_named_setups_are_there():
    assert len(NAMES) >= 25
    assert {*KNOWN, *ALONE, *SHARDED_SETUPS, *PARTS} <= set(NAMES)


def test_saves_are_read_by_their_records(tmp_path, shards):
    fit = tmp_path / PROGRAM / "fit-0"
    _save(fit, 10, 0, shards)
    _save(fit, 10, 1, shards, name="step-10-2")
    # A record that has not been written yet, what is no series, and what is no save.
    torch.save({"global_step": 30}, fit / "step-30.ckpt")
    _save(tmp_path / "fold-abc" / "fit-0", 40, 0, shards)
    (fit / "other.json").write_text("{}")
    series = Series(tmp_path)
    assert series.programs == [PROGRAM]
    assert [(save.fit, save.number, save.step, save.in_shards) for save in series.whole()] == [
        ((PROGRAM, 0), number, 10, bool(shards)) for number in (1, 0)
    ]
    assert series.newest((PROGRAM, 0)).record.name == "step-10-2.json"
    assert files_in_part(tmp_path) == []


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


def test_the_last_program_of_an_entry_point_has_the_newest_fit(tmp_path):
    for program in ("pretrain-ffffff", "finetune-000000"):
        _save(tmp_path / program / "fit-0", 10, 0)
    damaged = damage_newest(tmp_path, "truncated", random.Random(0), PARTS["processes"])
    assert damaged.fit == ("finetune-000000", 0)
    with pytest.raises(AssertionError, match="series of none"):
        Series.number(("train-000000", 0), PARTS["processes"])


def test_without_damage_or_saves_nothing_is_touched(checkpoints, tmp_path):
    assert damage_newest(checkpoints, "none", random.Random(0)) is None
    assert _whole(checkpoints) == {(0, 10), (0, 20), (1, 10), (1, 20)}
    (tmp_path / "other").mkdir()
    for kind in DAMAGES:
        assert damage_newest(tmp_path / "other", kind, random.Random(0)) is None


def test_files_in_part_are_seen_where_they_are_visible(checkpoints):
    folder = checkpoints / "deep"
    folder.mkdir()
    half = (checkpoints / PROGRAM / "fit-0" / "step-10.ckpt").read_bytes()[:700]
    (folder / ".last.ckpt.partial").write_bytes(half)
    (folder / "model.json").write_text("{}")
    (folder / "sharded.ckpt").mkdir()
    (folder / "sharded.ckpt" / "meta.pt").write_bytes(half)
    assert files_in_part(checkpoints) == []
    for name, content in (("last.ckpt", half), ("model.pt", b""), ("other.json", b'{"check')):
        (folder / name).write_bytes(content)
    assert [path.name for path in files_in_part(checkpoints)] == ["last.ckpt", "model.pt", "other.json"]


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


def test_one_host_holds_its_own_shards_only(tmp_path):
    fit = tmp_path / PROGRAM / "fit-0"
    _save(fit, 20, 0, "torch")
    missing = fit / "step-20.ckpt" / "__1_0.distcp"
    missing.unlink()
    assert _whole(tmp_path) == set()
    assert files_in_part(tmp_path) == [missing]
    assert files_in_part(tmp_path, of_all_hosts=False) == []
    (fit / "step-20.ckpt" / "__0_0.distcp").write_bytes(b"half")
    assert files_in_part(tmp_path, of_all_hosts=False) == [fit / "step-20.ckpt" / "__0_0.distcp"]


def test_sharded_runs_have_two_processes_and_each_damage_of_their_checkpoints():
    kinds = list(KINDS)
    faults = [draw(seed, SHARDED_SETUPS, mounts=True, strategies=kinds) for seed in range(300 * len(kinds))]
    assert {(fault.hosts, fault.processes) for fault in faults} == {(1, 2), (2, 1)}
    for kind in kinds:
        own = [fault for fault in faults if fault.strategy == kind]
        assert {fault.setup for fault in own} == set(SHARDED_SETUPS)
        assert {fault.kill for fault in own} == set(KILLS)
        more = () if kind in IN_ONE_FILE else SHARD_DAMAGES
        assert {fault.damage for fault in own} == {*DAMAGES, *more}


EXPECTED = Reference([{"steps": 20}, {"steps": 30}, {"steps": 8}], [0, 20, 0], [], frozenset(), {}, {})


def test_a_job_goes_on_with_the_first_fit_that_has_not_ended(checkpoints):
    job = SimpleNamespace(names=["algo-1"], parts=("",), checkpoints=lambda name: checkpoints)
    assert _positions(job, EXPECTED) == {(1, 20)}
    _save(checkpoints / PROGRAM / "fit-1", 20, 2, name="step-20-2")
    _save(checkpoints / PROGRAM / "fit-1", 29, 3)
    assert _positions(job, EXPECTED) == {(1, 29)}
    assert _positions(job, EXPECTED, reopened=(PROGRAM, 0)) == {(0, 20)}
    _end(checkpoints / PROGRAM / "fit-1")
    assert _positions(job, EXPECTED) == {(2, 0)}
    _save(checkpoints / PROGRAM / "fit-2", 8, 0)
    _end(checkpoints / PROGRAM / "fit-2")
    assert _positions(job, EXPECTED) == {EXPECTED.end} == {(3, 0)}
    _save(checkpoints / "train-ffffff" / "fit-0", 8, 0)
    with pytest.raises(AssertionError, match="there are the series of"):
        _positions(job, EXPECTED)


def test_what_one_host_has_may_be_sent_to_the_others(tmp_path):
    roots = {name: tmp_path / name for name in ("algo-1", "algo-2")}
    for root in roots.values():
        for step in (10, 15):
            _save(root / PROGRAM / "fit-0", step, step, "torch")
    job = SimpleNamespace(names=list(roots), parts=("",), checkpoints=roots.get)
    assert _positions(job, EXPECTED) == {(0, 15)}
    damage_newest(roots["algo-2"], "shard doubled", random.Random(0))
    assert _positions(job, EXPECTED) == {(0, 15)}
    damage_newest(roots["algo-2"], "half-synced", random.Random(0))
    assert _positions(job, EXPECTED) == {(0, 15), (0, 10)}


def test_training_goes_on_with_the_next_fit_where_nothing_is_left_of_one():
    assert EXPECTED.began((0, 12)) == {(0, 12)}
    assert EXPECTED.began((0, 20)) == {(0, 20), (1, 20)}
    assert EXPECTED.began((2, 8)) == {(2, 8), (3, 0)}
    assert EXPECTED.began((3, 0)) == {(3, 0)}


def test_what_is_lost_is_counted_over_fits():
    told = [{"fit": 0, "rank": 0, "start": 0, "time": 1.0}]
    told += [{"fit": 0, "step": step, "time": 1.0 + step} for step in (1, 2, 2, 3)]
    told += [{"fit": 1, "rank": 0, "start": 0, "time": 10.0}]
    told += [{"fit": 1, "step": step, "time": 10.0 + step} for step in (1, 2)]
    assert _lost(told, (1, 2)) == (0, 0.0)
    assert _lost(told, (1, 1)) == (1, 1.0)
    assert _lost(told, (1, 0)) == (2, 2.0)
    assert _lost(told, (0, 2)) == (3, 9.0)


def test_hosts_upload_what_they_changed_to_one_prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "_fresh_container", lambda self, name: {})
    server = SimpleNamespace(start=lambda *_, **__: None)
    job = Job(server, tmp_path / "job", "plain", 2, 1, {}, strategy="fsdp")
    main, other = (job.checkpoints(name) for name in job.names)
    for folder in (main, other):
        (folder / "kept").write_text("old")
        (folder / "replaced").write_text("old")
    job.prefix.mkdir()
    for name in ("kept", "replaced"):
        (job.prefix / name).write_text("old")
    job.start()
    (main / "replaced").unlink()
    (other / "replaced").write_text("newer")
    (other / "own").write_text("of the other host")
    job.upload(job.names)
    found = {path.name: path.read_text() for path in job.prefix.iterdir()}
    assert found == {"kept": "old", "replaced": "newer", "own": "of the other host"}
    job.download()
    assert {path.name for path in main.iterdir()} == {"kept", "replaced", "own"}


@pytest.mark.parametrize("kind", ["missing", "bit-flipped", "record missing", "half-synced"])
def test_hosts_of_a_sharded_job_get_all_shards_and_the_same_damage(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(Job, "_fresh_container", lambda self, name: {})
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


def test_the_table_counts_what_was_lost_and_what_failed(monkeypatch):
    monkeypatch.setitem(KNOWN, "stream", "an IterableDataset starts at its beginning")
    twice = (Moment("step", 0.1), Moment("gap", 0.5))
    verdicts = [
        Verdict(replace(FAULT, moments=twice), times=2, lost_steps=3, lost_seconds=0.24),
        Verdict(replace(FAULT, setup="folds", damage="empty"), times=1, lost_steps=7, lost_seconds=0.11, replayed=2),
        Verdict(replace(FAULT, kill="rank", processes=2), problem="the weights differ", times=1, lost_steps=90),
        Verdict(replace(FAULT, kill="rank", hosts=2, setup="stream"), problem=f"{DIFFERS}: weights 1, not 2", times=1),
    ]
    assert [_end_of(verdict) for verdict in verdicts] == ["equal", "equal", "failed", "known"]
    assert _end_of(replace(verdicts[3], problem="exit codes {'algo-1': 1} at the end")) == "failed"
    heads, _, *lines = _table(verdicts, "kill").splitlines()
    assert heads == "|  | job | rank |"
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines)
    assert (rows["runs"], rows["interruptions"], rows["fits replayed"]) == ("2 | 2", "3 | 2", "2 | 0")
    assert (rows["in step"], rows["in gap"], rows["empty"]) == ("2 | 2", "1 | 0", "1 | 0")
    assert (rows["equal end"], rows["known limit"], rows["most steps lost"]) == ("2 | 0", "0 | 1", "7 | 0")
    assert rows["most seconds lost"] == "0.2 | 0.0"
    assert "truncated" not in rows
    sharded = [Verdict(replace(each.fault, strategy="fsdp2")) for each in verdicts]
    assert _table(sharded, "strategy").startswith("|  | fsdp2 |\n| --- | --- |\n| runs | 4 |\n")


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def server(modules):
    made = Server(installed_namespaces()[0].name, os.pathsep.join([str(ROOT), str(modules)]))
    yield made
    made.end()


@pytest.mark.jobs
def test_what_is_started_is_a_process_of_its_own(server, modules, tmp_path):
    told = "[sys.argv, os.getcwd(), dict(os.environ), os.getsid(0) == os.getpid(), __name__]"
    code = f"import json, os, sys, atexit; atexit.register(print, 'bye'); print(json.dumps({told})); sys.exit(3)"
    (modules / "told.py").write_text(code)
    paths = {"folder": tmp_path, "log": tmp_path / "log", "code": tmp_path / "code"}
    started = server.start("told", ["a b"], environ={"TOLD": "y"}, **paths)
    assert started.wait(30) == 3
    line, bye = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line) == [[str(modules / "told.py"), "a b"], str(tmp_path), {"TOLD": "y"}, True, "__main__"]
    assert bye == "bye"
    (tmp_path / "code").unlink()
    (modules / "told.py").write_text("import time; time.sleep(60)")
    sleeping = server.start("told", [], environ={}, **paths)
    assert sleeping.poll() is None
    sleeping.signal(signal.SIGKILL)
    assert sleeping.wait(30) == -signal.SIGKILL


@pytest.mark.jobs
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
