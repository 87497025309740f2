import argparse
import builtins
import json
import sys
import time
import traceback

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure.failure_file import Redactor, redact_patterns
from lightning_sm._failure.reason import (
    MAX_LENGTH,
    FailureReason,
    find_peer_host,
    is_lost_peer_error,
    quoted_cause,
    user_frames,
)
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import ExportError, TopologyError


def caught(function):
    with pytest.raises(BaseException) as info:
        function()
    return info.value


def raising(error):
    def function():
        raise error

    return caught(function)


def test_cause_then_rank_and_host_then_user_code():
    def forward():
        raise RuntimeError("mat1 and mat2 shapes\n  cannot be multiplied")

    reason = FailureReason.from_exception(caught(forward), rank=3, host="algo-2")
    assert str(reason).startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (rank 3 on algo-2; at ")
    assert "test_reason.py:" in str(reason)
    assert str(reason).endswith(" in forward)")


@pytest.mark.parametrize(
    ("rank", "host", "place"),
    [(0, None, " (rank 0)"), (None, "algo-1", " (on algo-1)"), (None, None, ""), (1, "algo-2", " (rank 1 on algo-2)")],
)
def test_rank_and_host_as_far_as_they_are_known(rank, host, place):
    assert str(FailureReason("KeyError: 'x'", rank, host)) == f"KeyError: 'x'{place}"


def test_the_first_of_explicitly_chained_errors():
    def chained():
        try:
            {}["layers"]
        except KeyError as error:
            raise ValueError("no such layers") from error

    reason = FailureReason.from_exception(caught(chained))
    assert (reason.cause, reason.last_error) == ("KeyError: 'layers'", "ValueError: no such layers")
    assert str(reason).endswith("; then ValueError: no such layers)")


def test_the_first_of_errors_while_another_is_handled():
    def clean_up():
        try:
            raise OSError("disk full")
        finally:
            raise AttributeError("no file")

    assert FailureReason.from_exception(caught(clean_up)).cause == "OSError: disk full"


def test_an_error_raised_from_none_is_the_cause():
    def hidden():
        try:
            {}["x"]
        except KeyError:
            raise ValueError("explained") from None

    assert FailureReason.from_exception(caught(hidden)) == FailureReason.from_exception(caught(hidden))
    assert FailureReason.from_exception(caught(hidden)).cause == "ValueError: explained"


def test_an_error_of_ours_explains_what_was_before_it():
    def wrapped():
        try:
            raise OSError("errno 28")
        except OSError as error:
            raise ExportError("The disk is full.", hint="Make room.") from error

    text = str(FailureReason.from_exception(caught(wrapped), rank=0))
    assert text == f"ExportError: The disk is full. (rank 0) HINT: Make room. ({ExportError('').link})"


def test_an_error_of_ours_without_a_hint():
    text = str(FailureReason.from_exception(raising(TopologyError("No world.")), rank=0))
    assert text == f"TopologyError: No world. (rank 0) HINT: See {TopologyError('').link}"


def test_a_hint_stays_whole():
    text = str(
        FailureReason.from_exception(raising(TopologyError("long " * 500, hint="Do this.")), rank=7, host="algo-8")
    )
    assert len(text) == MAX_LENGTH
    assert text.startswith("TopologyError: long long")
    assert " … " in text
    assert text.endswith(f"long (rank 7 on algo-8) HINT: Do this. ({TopologyError('').link})")


def test_a_long_cause_keeps_its_end_and_the_innermost_frame(tmp_path):
    path = str(tmp_path / "unsafe.ckpt")
    torch.save({"value": argparse.Namespace()}, path)
    error = caught(lambda: torch.load(path, weights_only=True))
    reason = FailureReason.from_exception(error, rank=1, host="algo-2", redact=Redactor(TrainingJob()))
    for each in (reason, FailureReason.from_message(json.loads(json.dumps(reason.to_message())))):
        text = str(each)
        assert len(text) <= MAX_LENGTH
        assert text.startswith("UnpicklingError: Weights only load failed")
        assert "argparse.Namespace" in text
        assert "(rank 1 on algo-2; at " in text
    longer = str(FailureReason.from_exception(raising(ValueError("long " * 500 + "end")), rank=1))
    assert len(longer) == MAX_LENGTH
    assert "end (rank 1; at " in longer


@pytest.mark.parametrize("hint", ["Do this. " * 200, "token=abcdefgh12345678 " * 200])
def test_a_long_hint_is_cut_before_the_link(hint):
    error = raising(TopologyError("long " * 500, hint=hint))
    reason = FailureReason.from_exception(error, rank=7, host="algo-8", redact=redact_patterns)
    text = str(reason)
    assert len(text) == MAX_LENGTH
    assert text.startswith("TopologyError: long long")
    assert text.endswith(f"… ({error.link})")
    assert "abcdefgh" not in text
    assert FailureReason.from_message(json.loads(json.dumps(reason.to_message()))).link == error.link


def test_what_a_data_loaders_worker_quotes():
    quoted = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/opt/conda/lib/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/opt/ml/code/my_data.py", line 12, in __getitem__\n'
        "    raise ValueError(path)\nValueError: broken image\n"
    )
    reason = FailureReason.from_exception(raising(ValueError(quoted)), rank=0, host="algo-1")
    assert reason.cause == "ValueError: broken image"
    assert reason.frames[-1] == "code/my_data.py:12 in __getitem__"


def test_a_class_without_words():
    assert FailureReason.from_exception(raising(AssertionError())).cause == "AssertionError"


def test_secrets_are_masked_in_every_part():
    def chained():
        try:
            raise KeyError("hunter2")
        except KeyError as error:
            raise ValueError("hunter2 again") from error

    reason = FailureReason.from_exception(caught(chained), redact=lambda text: text.replace("hunter2", "***"))
    assert "hunter2" not in str(reason)
    reason = FailureReason.from_exception(
        raising(TopologyError("hunter2", hint="hunter2")), redact=lambda text: text.replace("hunter2", "")
    )
    assert "hunter2" not in str(reason)


def test_errors_that_name_each_other_as_cause():
    first, second = KeyError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert FailureReason.from_exception(first).cause == "KeyError: 'second'"


class Group(Exception):
    """As Python 3.11 has it built in, and the package exceptiongroup brings it."""

    def __init__(self, message, exceptions):
        super().__init__(message)
        self.exceptions = tuple(exceptions)


Group.__name__ = "BaseExceptionGroup"
_GROUPS = [Group, *([builtins.ExceptionGroup] if hasattr(builtins, "ExceptionGroup") else [])]


@pytest.mark.parametrize("group", _GROUPS)
def test_the_members_of_a_group(group):
    def member():
        raise ValueError("no such column")

    def chained():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OSError("then") from error

    inner = group("inner", [caught(chained), *(OSError(number) for number in range(6))])
    reason = FailureReason.from_exception(raising(group("workers", [caught(member), inner])))
    assert reason.cause.startswith(f"{group.__name__}: workers")
    assert reason.cause.endswith(
        ": ValueError: no such column; KeyError: 'first'; OSError: 0; OSError: 1; OSError: 2; and 3 more"
    )
    assert reason.frames[-1].endswith(" in member")


def test_a_group_within_a_chain_and_one_that_holds_itself():
    def chained():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise Group("later", [ValueError("x")]) from error

    assert FailureReason.from_exception(caught(chained)).last_error == "BaseExceptionGroup: later: ValueError: x"
    endless = Group("endless", [])
    endless.exceptions = (endless, KeyError("x"))
    assert FailureReason.from_exception(endless).cause == "BaseExceptionGroup: endless: KeyError: 'x'"


def test_a_message_that_cannot_be_told():
    class Silent(RuntimeError):
        def __str__(self):
            raise ValueError("no words")

    error = raising(Silent())
    assert FailureReason.from_exception(error).cause == "Silent: (its __str__ raised ValueError)"
    assert not is_lost_peer_error(error)


def test_only_what_can_be_written_and_shown():
    text = "\x1b[1;31mred\x1b[0m, a\x07bell \udc80\u202e\u2028 é 🙂"
    reason = FailureReason.from_exception(raising(ValueError(text * 200)), host="algo-1")
    shown = str(reason)
    assert len(shown) == len(shown.encode("utf-8", "backslashreplace").decode()) <= MAX_LENGTH
    assert shown.startswith("ValueError: red, a\\x07bell \\udc80\\u202e é 🙂")
    message = {**reason.to_message(), "cause": text, "frames": [text], "host": "a\x1b[2Jb"}
    assert "\x1b" not in str(FailureReason.from_message(message))
    assert FailureReason.from_message(message).host == "ab"


def test_lines_of_files_with_odd_names_are_masked_and_written(tmp_path):
    code = compile("1 / 0", str(tmp_path / "hunter2\udc80" / "train.py"), "exec")
    reason = FailureReason.from_exception(
        caught(lambda: exec(code)), redact=lambda text: text.replace("hunter2", "***")
    )
    assert reason.frames[-1] == "***\\udc80/train.py:1 in <module>"


def test_a_message_of_many_empty_lines_takes_no_time():
    began = time.thread_time()
    FailureReason.from_exception(raising(ValueError("\n" * 200_000)))
    assert time.thread_time() - began < 1


_text = st.text(max_size=1500)
_frame = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=300)


@given(
    cause=_text.filter(bool),
    rank=st.none() | st.integers(0, 9999),
    host=st.none() | st.just("algo-10"),
    frames=st.lists(_frame, max_size=6).map(tuple),
    later=st.none() | _text,
    hint=st.none() | _text,
    link=st.none() | st.just("https://github.com/x/y#z"),
)
def test_what_a_console_shows(cause, rank, host, frames, later, hint, link):
    reason = FailureReason(cause, rank, host, frames, later, hint, link=link)
    text = str(reason)
    assert len(text) <= MAX_LENGTH
    # The cause goes first, and is shortened only where not even it has room beside place and hint.
    whole = len(cause) + len(f" ({reason.location})") + len(f" HINT: {hint or ''} ({link})") <= MAX_LENGTH
    assert text.startswith(cause if whole and len(hint or "") < 400 else cause[:400])
    assert reason.location in text
    if hint and len(hint) < 400:
        assert f" HINT: {hint}" in text
    assert link is None or link in text[-len(link) - 1 :]


def test_it_survives_the_way_to_another_process():
    reason = FailureReason("KeyError: 'x'", 1, "algo-2", ("a.py:1 in f",), "ValueError", "Do.", True, "https://x.y#z")
    message = json.loads(json.dumps({**reason.to_message(), "of_a_newer_version": 1}))
    assert FailureReason.from_message(message) == reason


def trace_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error.__traceback__


def run_as(path, code):
    """Run code as if it stood in that file."""
    return trace_of(lambda: exec(compile(code, str(path), "exec"), {"json": json}))


def test_only_lines_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def load(text):\n    return json.loads(text)\nload('{')"
    frames = user_frames(run_as(tmp_path / "train.py", code))
    assert frames[-2:] == ("train.py:3 in <module>", "train.py:2 in load")


def test_not_ours_either():
    frames = user_frames(trace_of(lambda: Topology(launcher="none", global_rank=5, world_size=2)))
    assert len(frames) == 2
    assert all("test_reason.py" in frame for frame in frames)


def test_a_project_that_is_installed_shows_its_innermost_line(tmp_path):
    path = tmp_path / "site-packages" / "project" / "train.py"
    trace = run_as(path, "def step():\n    1 / 0\nstep()")
    while trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    assert user_frames(trace) == ("project/train.py:2 in step",)


def test_the_last_ones_of_many(tmp_path):
    def deep(level):
        return 1 / 0 if level == 0 else deep(level - 1)

    frames = user_frames(trace_of(deep, 20), limit=3)
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
    assert quoted_cause(message) == cause


def test_a_real_one_ends_with_its_error(tmp_path):
    try:
        raise TopologyError("no world", hint="Count.")
    except TopologyError:
        quoted = "".join(traceback.format_exception(*sys.exc_info()))
    assert quoted_cause(quoted).startswith("lightning_sm.errors.TopologyError: no world HINT: Count. (https://")


_GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6795"


class DistBackendError(RuntimeError):
    """As torch names it."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(_GLOO),
        RuntimeError("[..pair.cc:589] Read error [10.0.1.2]:39129: Connection reset by peer"),
        RuntimeError("Application timeout caused pair closure"),
        RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
        RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, remote process exited"),
        RuntimeError("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"),
        DistBackendError("whatever"),
    ],
    ids=lambda error: str(error)[-40:],
)
def test_errors_of_those_who_lost_a_peer(error):
    assert is_lost_peer_error(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DataLoader timed out after 60 seconds"),
        RuntimeError("the database said: connection refused"),
        RuntimeError("Broken pipe"),
        ConnectionResetError("Connection reset by peer"),
        ValueError(_GLOO),
    ],
    ids=str,
)
def test_errors_with_a_cause_of_their_own(error):
    assert not is_lost_peer_error(error)


_OF_ANYBODY = ["Socket Timeout", "Broken pipe", "Connection reset by peer", "Connection refused", "Wait timeout"]
_QUOTED = """Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    raise RuntimeError("connection refused")
RuntimeError: connection refused
"""


def raised_in(module, message):
    names = {"__name__": module}
    exec("def fail(message):\n    raise RuntimeError(message)", names)
    with pytest.raises(RuntimeError) as caught:
        names["fail"](message)
    return caught.value


@pytest.mark.parametrize("message", _OF_ANYBODY)
def test_what_anybody_may_say_counts_where_torch_says_it(message):
    assert is_lost_peer_error(raised_in("torch.distributed.distributed_c10d", message))
    assert not is_lost_peer_error(raised_in("data", message))
    assert not is_lost_peer_error(raised_in("torchdata.nodes", message))


def test_an_error_of_a_data_loaders_worker_is_its_own():
    assert not is_lost_peer_error(raised_in("torch._utils", _QUOTED))


def test_the_host_behind_an_address():
    assert find_peer_host(_GLOO, ("no-such-host.invalid", "localhost")) == "localhost"
    assert find_peer_host(_GLOO.replace("127.0.0.1", "192.0.2.1"), ("localhost",)) is None
    assert find_peer_host("no address at all", ("localhost",)) is None
    assert find_peer_host("NCCL: socketProgress: remote peer 127.0.0.1<52342>", ("localhost",)) == "localhost"
    assert find_peer_host(_GLOO, ("x" * 70,)) is None
