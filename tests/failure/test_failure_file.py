import os

import pytest

from lightning_sm._failure import failure_file
from lightning_sm._failure.failure_file import count_oom_kills, write_failure


@pytest.fixture
def path(tmp_path):
    return tmp_path / "output" / "failure"


@pytest.mark.parametrize(
    ("reason", "written"),
    [("é" * 2000, "é" * 1024), ("a\udcffb", "a\\udcffb"), ("\udcff" * 1000, ("\\udcff" * 1000)[:1024])],
)
def test_1024_characters_that_can_be_shown(path, reason, written):
    write_failure(str(path), reason)
    assert path.read_text(encoding="utf-8") == written


def test_outside_a_container_and_before_a_restart_nothing_is_written(tmp_path, path, in_environ):
    write_failure(None, "reason")
    in_environ({"TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RESTART_COUNT": "1"})
    write_failure(str(path), "reason")
    assert not list(tmp_path.iterdir())
    in_environ({"TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RESTART_COUNT": "2"})
    write_failure(str(path), "reason")
    assert path.exists()


def test_a_file_that_cannot_be_written(tmp_path, lines):
    (tmp_path / "file").write_text("")
    write_failure(str(tmp_path / "file" / "failure"), "reason")
    assert "could not be written" in lines[0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_leaves_no_empty_file_which_nobody_would_replace(path, monkeypatch, lines):
    def open_full(name, mode, buffering):
        path.touch(exist_ok=False)
        return open("/dev/full", "wb", buffering)

    with monkeypatch.context() as patch:
        patch.setattr(failure_file, "open", open_full, raising=False)
        write_failure(str(path), "reason")
    assert "No space left" in lines[0]
    write_failure(str(path), "later")
    assert path.read_text() == "later"


def test_oom_kills_of_both_versions_of_control_groups(tmp_path):
    assert count_oom_kills(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert count_oom_kills(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_bytes(b"\xff oom 4\noom_kill\n")
    assert count_oom_kills(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert count_oom_kills(str(tmp_path)) == 3
