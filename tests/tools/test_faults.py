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
from tools.faults.__main__ import _by_kill, _by_setup, _by_strategy, _end
from tools.faults.campaign import DIFFERS, Verdict, play, reference
from tools.faults.damage import damage_newest, files_in_part, whole_checkpoints
from tools.faults.folders import damage_folder, folder_is_in_part, folder_step
from tools.faults.job import Job
from tools.faults.plan import (
    ALONE,
    DAMAGES,
    FOLDER_DAMAGES,
    IN_ONE_FILE,
    KILLS,
    KNOWN,
    LIBRARY,
    SHARDED_SETUPS,
    WHERES,
    Fault,
    Moment,
    draw,
    draw_sharded,
)
from tools.faults.server import Server

NAMES = sorted(LIBRARY)


@pytest.fixture
def checkpoints(tmp_path):
    for step in (10, 20):
        content = {"global_step": step, "state_dict": {"weight": torch.ones(50)}, "optimizer_states": []}
        torch.save(content, tmp_path / f"resume-{step}.ckpt")
    return tmp_path


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


def test_what_cannot_be_had_is_not_drawn():
    faults = [draw(seed, NAMES, mounts=False) for seed in range(300)]
    assert {fault.kill for fault in faults} == {"job", "SIGTERM", "rank", "host"}
    assert all(fault.hosts > 1 for fault in faults if fault.kill == "host" or fault.damage == "half-synced")
    assert all(fault.hosts == fault.processes == 1 for fault in faults if fault.setup in ALONE)


def test_named_setups_are_there():
    assert len(NAMES) >= 25
    assert {*KNOWN, *ALONE} <= set(NAMES)


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind != "none"])
def test_a_damaged_checkpoint_is_whole_no_more(checkpoints, kind):
    for seed in range(20):
        before = (checkpoints / "resume-20.ckpt").read_bytes()
        assert damage_newest(checkpoints, kind, random.Random(seed)) == "resume-20.ckpt"
        assert whole_checkpoints(checkpoints) == {"resume-10.ckpt": 10}
        (checkpoints / "resume-20.ckpt").write_bytes(before)


def test_without_damage_or_checkpoints_nothing_is_touched(checkpoints, tmp_path):
    assert damage_newest(checkpoints, "none", random.Random(0)) is None
    assert whole_checkpoints(checkpoints) == {"resume-10.ckpt": 10, "resume-20.ckpt": 20}
    (tmp_path / "other").mkdir()
    assert damage_newest(tmp_path / "other", "empty", random.Random(0)) is None


def test_files_in_part_are_seen_where_they_are_visible(checkpoints):
    folder = checkpoints / "deep"
    folder.mkdir()
    half = (checkpoints / "resume-10.ckpt").read_bytes()[:700]
    (folder / ".last.ckpt.partial").write_bytes(half)
    (folder / "model.json").write_text("{}")
    assert files_in_part(checkpoints) == []
    for name, content in (("last.ckpt", half), ("model.pt", b""), ("finished.json", b'{"check')):
        (folder / name).write_bytes(content)
    assert [path.name for path in files_in_part(checkpoints)] == ["last.ckpt", "model.pt", "finished.json"]


def test_sharded_runs_have_two_processes_and_each_damage_of_their_checkpoints():
    kinds = list(KINDS)
    faults = [draw_sharded(seed, kinds, SHARDED_SETUPS, mounts=True) for seed in range(250 * len(kinds))]
    assert {(fault.hosts, fault.processes) for fault in faults} == {(1, 2), (2, 1)}
    for kind in kinds:
        own = [fault for fault in faults if fault.strategy == kind]
        assert len(own) == 250
        assert {fault.setup for fault in own} == set(SHARDED_SETUPS)
        assert {fault.kill for fault in own} == set(KILLS)
        assert {fault.damage for fault in own} == set(DAMAGES if kind in IN_ONE_FILE else FOLDER_DAMAGES)
        assert {fault.in_folders for fault in own} == {kind not in IN_ONE_FILE}
    alone = [draw_sharded(seed, kinds, SHARDED_SETUPS, mounts=False) for seed in range(300)]
    assert all(fault.hosts == 1 and fault.kill in ("job", "SIGTERM", "rank") for fault in alone)
    assert str(faults[kinds.index("fsdp2")]).startswith("fsdp2, ")


def _save_folder(folder, step, deepspeed=False):
    """Shards of two ranks with their manifest, as a save of a sharded strategy leaves them."""
    folder.mkdir()
    inside = folder / "checkpoint" if deepspeed else folder
    inside.mkdir(exist_ok=True)
    for rank in (0, 1):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" if deepspeed else f"__{rank}_0.distcp"
        (inside / name).write_bytes(bytes([step, rank] * 50))
    content = inside / ("mp_rank_00_model_states.pt" if deepspeed else "meta.pt")
    torch.save({"global_step": step, "optimizer_states": []}, content)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    listed = [(str(path.relative_to(folder)), path.stat().st_size, zlib.crc32(path.read_bytes())) for path in paths]
    files = [dict(zip(("name", "size", "crc32"), each)) for each in listed]
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    return folder


@pytest.mark.parametrize("deepspeed", [False, True])
@pytest.mark.parametrize("kind", FOLDER_DAMAGES[1:])
def test_a_damaged_folder_of_shards_is_whole_no_more(tmp_path, kind, deepspeed):
    older = _save_folder(tmp_path / "older", 10, deepspeed)
    for seed in range(20):
        folder = _save_folder(tmp_path / f"{seed}.ckpt", 20, deepspeed)
        assert folder_step(folder) == 20
        assert not folder_is_in_part(folder, of_all_hosts=True)
        assert damage_folder(folder, kind, random.Random(seed), [older])
        # Only DeepSpeed reads a shard of a rank that there is not.
        assert folder_step(folder) == (20 if kind == "shard doubled" and not deepspeed else None)
        assert folder_step(folder, without_manifest=True) == (20 if folder_step(folder) or "manifest" in kind else None)
    assert folder_step(older) == 10


def test_one_host_holds_its_own_shards_only(tmp_path):
    folder = _save_folder(tmp_path / "last.ckpt", 20)
    (folder / "__1_0.distcp").unlink()
    assert whole_checkpoints(tmp_path) == {}
    assert files_in_part(tmp_path) == [folder]
    assert files_in_part(tmp_path, of_all_hosts=False) == []
    (folder / "__0_0.distcp").write_bytes(b"half")
    assert files_in_part(tmp_path, of_all_hosts=False) == [folder]


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


FAULT = Fault(0, "plain", 1, 1, "job", "none", (Moment("step", 0.3),), 0, False, 0)


def test_the_tables_count_what_was_lost_and_what_failed(monkeypatch):
    monkeypatch.setitem(KNOWN, "stream", "an IterableDataset starts at its beginning")
    twice = (Moment("step", 0.1), Moment("gap", 0.5))
    verdicts = [
        Verdict(replace(FAULT, moments=twice), times=2, lost_steps=3, lost_seconds=0.24),
        Verdict(replace(FAULT, damage="empty"), times=1, lost_steps=7, lost_seconds=0.11),
        Verdict(replace(FAULT, kill="rank", processes=2), problem="the weights differ", times=1, lost_steps=90),
        Verdict(replace(FAULT, kill="rank", hosts=2, setup="stream"), problem=f"{DIFFERS}: weights 1, not 2", times=1),
    ]
    assert [_end(verdict) for verdict in verdicts] == ["equal", "equal", "failed", "known"]
    assert _end(replace(verdicts[3], problem="exit codes {'algo-1': 1} at the end")) == "failed"
    rows = [line.strip("| ").split(" | ") for line in _by_kill(verdicts).splitlines()[2:]]
    assert rows[0] == ["job", "2", "0", "3", "2", "0", "0", "0", "1", "0", "1", "0", "0", "2 of 2", "0", "7", "0.2"]
    assert rows[2] == ["rank", "2", "2", "2", "2", *"0000", *"0000", "0 of 2", "1", "0", "0.0"]
    assert [row[0] for row in rows] == list(KILLS)
    rows = [line.strip("| ").split(" | ") for line in _by_setup(verdicts).splitlines()[2:]]
    assert rows == [["plain", "3", "1", "4", "2 of 3", "0"], ["stream", "1", "1", "1", "0 of 1", "1"]]


def test_the_table_has_a_column_for_each_strategy():
    verdicts = [
        Verdict(replace(FAULT, strategy="deepspeed_3", damage="shard missing"), times=2, lost_steps=4),
        Verdict(replace(FAULT, strategy="fsdp2", hosts=2, kill="host"), times=1, lost_steps=7, lost_seconds=0.3),
        Verdict(replace(FAULT, strategy="fsdp2", kill="rank"), problem="the weights differ", times=1, lost_steps=90),
    ]
    rows = dict(line.strip("| ").split(" | ", 1) for line in _by_strategy(verdicts).splitlines()[2:])
    assert _by_strategy(verdicts).splitlines()[0] == "|  | fsdp2 | deepspeed 3 |"
    assert (rows["runs"], rows["interruptions"], rows["of two hosts"]) == ("2 | 1", "2 | 2", "1 | 0")
    assert (rows["ended by host"], rows["shard missing"]) == ("1 | 0", "0 | 1")
    assert (rows["equal end"], rows["most steps lost"]) == ("1 of 2 | 1 of 1", "7 | 4")
    assert rows["most seconds lost"] == "0.3 | 0.0"


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
    other = replace(expected, result={**expected.result, "exported": "0"}, metrics=expected.metrics | {(1, "a", "2")})
    problem = play(server, fault, other).problem
    assert f"exported {expected.result['exported']}, not 0" in problem
    assert "1 values were not logged, such as [(1, 'a', '2')]" in problem
