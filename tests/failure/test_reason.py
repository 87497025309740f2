import builtins
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure._reason import MOST, Reason
from lightning_sm._failure._secondary import looks_secondary
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

    reason = Reason.of(caught(forward), rank=3, host="algo-2")
    assert str(reason).startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (rank 3 on algo-2; at ")
    assert "test_reason.py:" in str(reason)
    assert str(reason).endswith(" in forward)")


@pytest.mark.parametrize(
    ("rank", "host", "place"),
    [(0, None, " (rank 0)"), (None, "algo-1", " (on algo-1)"), (None, None, ""), (1, "algo-2", " (rank 1 on algo-2)")],
)
def test_rank_and_host_as_far_as_they_are_known(rank, host, place):
    assert str(Reason("KeyError: 'x'", rank, host)) == f"KeyError: 'x'{place}"


def test_the_first_of_explicitly_chained_errors():
    def chained():
        try:
            {}["layers"]
        except KeyError as error:
            raise ValueError("no such layers") from error

    reason = Reason.of(caught(chained))
    assert (reason.cause, reason.later) == ("KeyError: 'layers'", "ValueError: no such layers")
    assert str(reason).endswith("; then ValueError: no such layers)")


def test_the_first_of_errors_while_another_is_handled():
    def clean_up():
        try:
            raise OSError("disk full")
        finally:
            raise AttributeError("no file")

    assert Reason.of(caught(clean_up)).cause == "OSError: disk full"


def test_an_error_raised_from_none_is_the_cause():
    def hidden():
        try:
            {}["x"]
        except KeyError:
            raise ValueError("explained") from None

    assert Reason.of(caught(hidden)) == Reason.of(caught(hidden))
    assert Reason.of(caught(hidden)).cause == "ValueError: explained"


def test_an_error_of_ours_explains_what_was_before_it():
    def wrapped():
        try:
            raise OSError("errno 28")
        except OSError as error:
            raise ExportError("The disk is full.", hint="Make room.") from error

    assert str(Reason.of(caught(wrapped), rank=0)) == "ExportError: The disk is full. (rank 0) HINT: Make room."


def test_a_hint_stays_whole():
    text = str(Reason.of(raising(TopologyError("long " * 500, hint="Do this.")), rank=7, host="algo-8"))
    assert len(text) == MOST
    assert text.startswith("TopologyError: long long")
    assert text.endswith("… (rank 7 on algo-8) HINT: Do this.")


def test_what_a_data_loaders_worker_quotes():
    quoted = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/opt/conda/lib/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/opt/ml/code/my_data.py", line 12, in __getitem__\n'
        "    raise ValueError(path)\nValueError: broken image\n"
    )
    reason = Reason.of(raising(ValueError(quoted)), rank=0, host="algo-1")
    assert reason.cause == "ValueError: broken image"
    assert reason.frames[-1] == "code/my_data.py:12 in __getitem__"


def test_a_class_without_words():
    assert Reason.of(raising(AssertionError())).cause == "AssertionError"


def test_secrets_are_masked_in_every_part():
    def chained():
        try:
            raise KeyError("hunter2")
        except KeyError as error:
            raise ValueError("hunter2 again") from error

    reason = Reason.of(caught(chained), mask=lambda text: text.replace("hunter2", "***"))
    assert "hunter2" not in str(reason)
    reason = Reason.of(raising(TopologyError("hunter2", hint="hunter2")), mask=lambda text: text.replace("hunter2", ""))
    assert "hunter2" not in str(reason)


def test_errors_that_name_each_other_as_cause():
    first, second = KeyError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert Reason.of(first).cause == "KeyError: 'second'"


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
    reason = Reason.of(raising(group("workers", [caught(member), inner])))
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

    assert Reason.of(caught(chained)).later == "BaseExceptionGroup: later: ValueError: x"
    endless = Group("endless", [])
    endless.exceptions = (endless, KeyError("x"))
    assert Reason.of(endless).cause == "BaseExceptionGroup: endless: KeyError: 'x'"


def test_a_message_that_cannot_be_told():
    class Silent(RuntimeError):
        def __str__(self):
            raise ValueError("no words")

    error = raising(Silent())
    assert Reason.of(error).cause == "Silent: (its __str__ raised ValueError)"
    assert not looks_secondary(error)


def test_only_what_can_be_written_and_shown():
    text = "\x1b[1;31mred\x1b[0m, a\x07bell \udc80\u202e\u2028 é 🙂"
    reason = Reason.of(raising(ValueError(text * 200)), host="algo-1")
    shown = str(reason)
    assert len(shown) == len(shown.encode("utf-8", "backslashreplace").decode()) <= MOST
    assert shown.startswith("ValueError: red, a\\x07bell \\udc80\\u202e é 🙂")
    message = {**reason.as_message(), "cause": text, "frames": [text], "host": "a\x1b[2Jb"}
    assert "\x1b" not in str(Reason.from_message(message))
    assert Reason.from_message(message).host == "ab"


def test_lines_of_files_with_odd_names_are_masked_and_written(tmp_path):
    code = compile("1 / 0", str(tmp_path / "hunter2\udc80" / "train.py"), "exec")
    reason = Reason.of(caught(lambda: exec(code)), mask=lambda text: text.replace("hunter2", "***"))
    assert reason.frames[-1] == "***\\udc80/train.py:1 in <module>"


def test_a_message_of_many_empty_lines_takes_no_time():
    began = time.thread_time()
    Reason.of(raising(ValueError("\n" * 200_000)))
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
)
def test_what_a_console_shows(cause, rank, host, frames, later, hint):
    reason = Reason(cause, rank, host, frames, later, hint)
    text = str(reason)
    assert len(text) <= MOST
    # The cause goes first, and is shortened only where not even it has room beside place and hint.
    whole = len(cause) + len(f" ({reason.place})") + len(f" HINT: {hint or ''}") <= MOST
    assert text.startswith(cause if whole and len(hint or "") < 500 else cause[:400])
    assert reason.place in text
    if hint and len(hint) < 400:
        assert text.endswith(f" HINT: {hint}")


def test_it_survives_the_way_to_another_process():
    reason = Reason("KeyError: 'x'", 1, "algo-2", ("a.py:1 in f",), "ValueError", "Do.", True)
    message = json.loads(json.dumps({**reason.as_message(), "of_a_newer_version": 1}))
    assert Reason.from_message(message) == reason
