"""What is told of an exception."""

import argparse
import builtins
import json
import queue

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure import redact_patterns
from lightning_sm._failure.failure_file import MAX_LENGTH
from lightning_sm._failure.reason import FailureReason, is_lost_peer_error
from lightning_sm.errors import ExportError, TopologyError


def caught(function):
    with pytest.raises(BaseException) as info:
        function()
    return info.value


def raising(error, cause=None, then=None):
    """``error`` as it is caught, raised from ``cause``, or followed by ``then``."""

    def function():
        try:
            raise error from cause
        finally:
            if then is not None:
                raise then

    return caught(function)


def told(error, **options):
    return FailureReason.from_exception(error, **options)


def run_as(path, code, **names):
    """The error of code that stands in that file."""
    return caught(lambda: exec(compile(code, str(path), "exec"), names))


class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("no words")


def _in_a_circle():
    first, second = KeyError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "cause", "last_error"),
    [
        (raising(ValueError("no such layers"), KeyError("layers")), "KeyError: 'layers'", "ValueError: no such layers"),
        (raising(OSError("disk full"), then=KeyError("file")), "OSError: disk full", "KeyError: 'file'"),
        (raising(AssertionError()), "AssertionError", None),
        (raising(Silent()), "Silent: (its __str__ raised ValueError)", None),
        # What a data loader waits for, of which a worker was killed; and of the program itself.
        (raising(RuntimeError("worker exited"), queue.Empty()), "RuntimeError: worker exited", None),
        (raising(queue.Empty()), "Empty", None),
        (_in_a_circle(), "KeyError: 'second'", "KeyError: 'first'"),
        # An error of ours explains what was before it.
        (raising(ExportError("The disk is full."), OSError(28)), "ExportError: The disk is full.", None),
    ],
)
def test_the_first_of_chained_errors(error, cause, last_error):
    assert (told(error).cause, told(error).last_error) == (cause, last_error)


def test_a_long_cause_keeps_its_end_and_the_innermost_frame(tmp_path):
    path = str(tmp_path / "unsafe.ckpt")
    torch.save({"value": argparse.Namespace()}, path)
    for error, begin, end in (
        (caught(lambda: torch.load(path, weights_only=True)), "UnpicklingError: Weights only", "argparse.Namespace"),
        (raising(ValueError("long " * 500 + "end")), "ValueError: long long", "end"),
    ):
        text = str(told(error, rank=1, host="algo-2"))
        assert len(text) <= MAX_LENGTH
        assert text.startswith(begin)
        assert end in text
        assert "(rank 1 on algo-2; at " in text


_WORKER = (
    "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "/opt/conda/lib/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop\n'
    "    data = fetcher.fetch(index)\n"
    '  File "/opt/ml/code/my_data.py", line 12, in __getitem__\n'
    "    raise ValueError(path)\nValueError: broken\nimage\n"
)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (_WORKER, "ValueError: broken image"),
        ("-- Process 1:\nTraceback (most recent call last):\n  File 'a.py'\nOSError: two\nlines", "OSError: two lines"),
        ("Traceback (most recent call last):\nKeyError", "KeyError"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\n', None),
        ("cannot read:\n  a.png\nConvert it.", None),
    ],
)
def test_what_a_quoted_traceback_ends_with(message, cause):
    reason = told(raising(ValueError(message)))
    assert reason.cause == (cause or f"ValueError: {' '.join(message.split())}")
    assert message != _WORKER or reason.frames[-1] == "code/my_data.py:12 in __getitem__"


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

    inner = group("inner", [raising(OSError("then"), KeyError("first")), *(OSError(number) for number in range(6))])
    reason = told(raising(group("workers", [caught(member), inner])))
    assert reason.cause.startswith(f"{group.__name__}: workers")
    assert reason.cause.endswith(
        ": ValueError: no such column; KeyError: 'first'; OSError: 0; OSError: 1; OSError: 2; and 3 more"
    )
    assert reason.frames[-1].endswith(" in member")


def test_secrets_are_masked_in_every_part(tmp_path):
    def mask(text):
        return text.replace("hunter2", "***")

    for error in (
        raising(ValueError("hunter2 again"), KeyError("hunter2")),
        raising(TopologyError("hunter2", hint="hunter2")),
        run_as(tmp_path / "hunter2\udc80" / "train.py", "1 / 0"),
    ):
        assert "***" in str(told(error, redact=mask))
        assert "hunter2" not in str(told(error, redact=mask))


def test_only_what_can_be_written_and_shown():
    text = "\x1b[1;31mred\x1b[0m, a\x07bell \udc80\u202e\u2028 é 🙂"
    shown = str(told(raising(ValueError(text * 200))))
    assert len(shown) == len(shown.encode("utf-8", "backslashreplace").decode()) <= MAX_LENGTH
    assert shown.startswith("ValueError: red, a\\x07bell \\udc80\\u202e é 🙂")


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
    reason = FailureReason(cause, rank, host, frames, later, hint, link)
    text = str(reason)
    assert len(text) <= MAX_LENGTH
    # The cause goes first, and is shortened only where not even it has room beside place and hint.
    whole = len(cause) + len(f" ({reason.location})") + len(f" HINT: {hint or ''} ({link})") <= MAX_LENGTH
    assert text.startswith(cause if whole and len(hint or "") < 400 else cause[:400])
    assert reason.location in text
    if hint and len(hint) < 400:
        assert f" HINT: {hint}" in text
    assert link is None or link in text[-len(link) - 1 :]


def test_only_lines_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def load(text):\n    return json.loads(text)\nload('{')"
    frames = told(run_as(tmp_path / "train.py", code, json=json)).frames
    assert frames[-2:] == ("train.py:3 in <module>", "train.py:2 in load")
    # Not ours either, nor what is generated.
    for error in (
        caught(lambda: redact_patterns(None)),
        run_as("<eval_with_key>.5", "1 / 0"),
    ):
        assert all("test_reason.py" in frame for frame in told(error).frames)
    # Of a project that is installed the innermost line, as there are no others.
    error = run_as(tmp_path.parent / "site-packages" / "project" / "train.py", "def step():\n    1 / 0\nstep()")
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert told(error.with_traceback(trace)).frames == ("project/train.py:2 in step",)


_GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6795"
_QUOTED = """Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    raise RuntimeError("connection refused")
RuntimeError: connection refused
"""


class DistBackendError(RuntimeError):
    """As torch names it."""


def raised_in(module, message):
    names = {"__name__": module}
    exec("def fail(message):\n    raise RuntimeError(message)", names)
    return caught(lambda: names["fail"](message))


_OF_LOST_PEERS = [
    RuntimeError(_GLOO),
    RuntimeError("Application timeout caused pair closure"),
    RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
    RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, remote process exited"),
    RuntimeError("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"),
    DistBackendError("whatever"),
    # What anybody may say counts where torch says it.
    raised_in("torch.distributed.distributed_c10d", "Socket Timeout"),
    raised_in("torch.distributed.distributed_c10d", "Broken pipe"),
    raised_in(
        "torch.distributed.distributed_c10d", "[..pair.cc:589] Read error [10.0.1.2]:39129: Connection reset by peer"
    ),
    raised_in("torch.distributed.distributed_c10d", "Wait timeout"),
]
_OF_THEIR_OWN = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("DataLoader timed out after 60 seconds"),
    # Files of other libraries and projects.
    RuntimeError("[/opt/dali/dali/pipeline/data/buffer.cc:55] Assert on 'size <= capacity' failed"),
    RuntimeError("cannot decode igloo/0017.jpg"),
    ConnectionResetError("Connection reset by peer"),
    ValueError(_GLOO),
    Silent(),
    DistBackendError("The server socket has failed to listen on any local network address. port: 7777"),
    raised_in("data", "Broken pipe"),
    raised_in("torchdata.nodes", "connection refused"),
    raised_in("torch._utils", _QUOTED),
]


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [*((error, True) for error in _OF_LOST_PEERS), *((error, False) for error in _OF_THEIR_OWN)],
    ids=repr,
)
def test_errors_of_those_who_lost_a_peer_and_others(error, is_lost):
    assert is_lost_peer_error(error) is is_lost
