import os

import pytest

from lightning_sm._sagemaker.json_input import (
    expect_mapping,
    expect_names,
    expect_path,
    read_count,
    read_json_file,
    read_json_variable,
)
from lightning_sm.errors import JobConfigError


@pytest.mark.parametrize("path", ["absent.json", "file.json/below-a-file.json"])
def test_absent_file_is_none(tmp_path, path):
    (tmp_path / "file.json").write_text("{}")
    assert read_json_file(str(tmp_path / path)) is None


def test_file(tmp_path):
    (tmp_path / "file.json").write_text('{"a": [1, null, "é"]}', encoding="utf-8")
    assert read_json_file(str(tmp_path / "file.json")) == {"a": [1, None, "é"]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "is not JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_broken_file_is_named_with_what_it_holds(tmp_path, content, says):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(JobConfigError, match=says) as info:
        read_json_file(str(path))
    assert str(path) in str(info.value)
    assert "HINT:" in str(info.value)
    assert len(str(info.value)) < 800


def test_directory_in_the_place_of_a_file(tmp_path):
    with pytest.raises(JobConfigError, match="cannot be read"):
        read_json_file(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_without_permission(tmp_path):
    path = tmp_path / "file.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(JobConfigError, match="cannot be read"):
        read_json_file(str(path))


@pytest.mark.parametrize("environ", [{}, {"SM_HPS": ""}, {"SM_HPS": " \n"}])
def test_unset_variable_is_none(environ):
    assert read_json_variable(environ, "SM_HPS") is None


def test_variable_cut_at_a_hash_is_told_as_such():
    with pytest.raises(JobConfigError, match=r"SM_HPS is not JSON.*HINT:.*'#'"):
        read_json_variable({"SM_HPS": '{"color":"'}, "SM_HPS")


@pytest.mark.parametrize("value", [None, [], "a", 1, True])
def test_no_mapping(value):
    with pytest.raises(JobConfigError, match="HERE should be a JSON object"):
        expect_mapping(value, "HERE")


@pytest.mark.parametrize("value", [None, {}, "algo-1", [1], [None], [""], ["algo-1", ["algo-2"]]])
def test_no_names(value):
    with pytest.raises(JobConfigError, match="HERE should be a JSON list of names"):
        expect_names(value, "HERE")


def test_names_twice():
    with pytest.raises(JobConfigError, match="HERE has a duplicate"):
        expect_names(["algo-1", "algo-2", "algo-1"], "HERE")


def test_names_keep_their_order():
    assert expect_names(["algo-10", "algo-1", "algo-2"], "HERE") == ["algo-10", "algo-1", "algo-2"]


@pytest.mark.parametrize("value", [None, 5, "a\0b", "\ud800"])
def test_no_path(value):
    with pytest.raises(JobConfigError, match=r"HERE should be .* a path"):
        expect_path(value, "HERE")


def test_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "resourceconfig.json")
    with pytest.raises(JobConfigError, match="not a regular file"):
        read_json_file(str(tmp_path / "resourceconfig.json"))


@pytest.mark.parametrize("value", ["training", "my-data", "/mnt/ünicode ✓", "\udc80"])
def test_path(value):
    # "\udc80" is how Python spells a byte of a file name that is no UTF-8.
    assert expect_path(value, "HERE") == value


def test_long_value_is_cut():
    with pytest.raises(JobConfigError) as info:
        expect_mapping(["x" * 10_000], "HERE")
    assert len(str(info.value)) < 400


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("8", 8), (" 16 ", 16), ("007", 7), ("", None), ("  ", None)])
def test_count(text, count):
    assert read_count({"RANK": text}, "RANK") == count


def test_unset_count_is_none():
    assert read_count({}, "RANK") is None


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "1e3", "0x10", "1_000", "²", "٣", "1 2", "9" * 5000, "None"])
def test_no_count(text):
    with pytest.raises(JobConfigError, match=r"The environment variable RANK is .*HINT: RANK is set by"):
        read_count({"RANK": text}, "RANK")


def test_count_below_the_least():
    with pytest.raises(JobConfigError, match="not an integer of at least 1"):
        read_count({"WORLD_SIZE": "0"}, "WORLD_SIZE", least=1)
