import json
import sys

import pytest

from lightning_sm._failure._frames import QuotedTraceback, user_frames
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import TopologyError


def trace_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error.__traceback__


def run(path, code):
    """Run code as if it stood in that file."""
    return trace_of(lambda: exec(compile(code, str(path), "exec"), {"json": json}))


def test_only_lines_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def load(text):\n    return json.loads(text)\nload('{')"
    frames = user_frames(run(tmp_path / "train.py", code))
    assert frames[-2:] == ("train.py:3 in <module>", "train.py:2 in load")


def test_not_ours_either():
    frames = user_frames(trace_of(lambda: Topology(launcher="none", global_rank=5, world_size=2)))
    assert len(frames) == 2
    assert all("test_frames.py" in frame for frame in frames)


def test_a_project_that_is_installed_shows_its_innermost_line(tmp_path):
    path = tmp_path / "site-packages" / "project" / "train.py"
    trace = run(path, "def step():\n    1 / 0\nstep()")
    while trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    assert user_frames(trace) == ("project/train.py:2 in step",)


def test_the_last_ones_of_many(tmp_path):
    def deep(level):
        return 1 / 0 if level == 0 else deep(level - 1)

    frames = user_frames(trace_of(deep, 20), most=3)
    assert len(frames) == 3
    assert all(frame.endswith(" in deep") for frame in frames)


def test_generated_code_is_nobodys():
    trace = trace_of(lambda: exec(compile("1 / 0", "<eval_with_key>.5", "exec")))
    assert user_frames(trace)[-1].endswith("in <lambda>")
    assert user_frames(trace_of(lambda: exec("1 / 0")))[-1].endswith("in <lambda>")


def test_a_program_on_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert user_frames(trace_of(lambda: exec("1 / 0")))[-1] == "<string>:1 in <module>"


def test_no_traceback():
    assert user_frames(None) == ()


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("plain", None),
        ("", None),
        (
            "Original Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    x\nKeyError: 'x'\n",
            "KeyError: 'x'",
        ),
        (
            '-- Process 1 terminated:\nTraceback (most recent call last):\n  File "a.py", line 1\nOSError: two\nlines',
            "OSError: two\nlines",
        ),
        ("Traceback (most recent call last):\nKeyError", "KeyError"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\n', None),
    ],
)
def test_what_a_quoted_traceback_ends_with(message, cause):
    assert QuotedTraceback.cause(message) == cause


def test_a_real_one_ends_with_its_error(tmp_path):
    import traceback

    try:
        raise TopologyError("no world", hint="Count.")
    except TopologyError:
        quoted = "".join(traceback.format_exception(*sys.exc_info()))
    assert QuotedTraceback.cause(quoted) == "lightning_sm.errors.TopologyError: no world HINT: Count."
