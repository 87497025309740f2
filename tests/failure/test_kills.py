from lightning_sm._failure._kills import count_kills


def test_both_versions_of_control_groups(tmp_path):
    assert count_kills(str(tmp_path)) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert count_kills(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert count_kills(str(tmp_path)) == 3


def test_a_file_that_says_something_else(tmp_path):
    (tmp_path / "memory.events").write_bytes(b"\xff oom 4\noom_kill\n")
    assert count_kills(str(tmp_path)) is None
