import json
import os
import random
import signal
from dataclasses import replace

import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from tools import ROOT
from tools.faults.__main__ import _by_kill, _by_setup, _end
from tools.faults.campaign import DIFFERS, Verdict, play, reference
from tools.faults.damage import damage_newest, files_in_part, whole_checkpoints
from tools.faults.plan import ALONE, DAMAGES, KILLS, KNOWN, LIBRARY, WHERES, Fault, Moment, draw
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
