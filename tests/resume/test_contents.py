import collections
import functools
import pickle

import pytest
import torch

from lightning_sm._checkpoint.contents import DamagedError, Opaque, read_contents, read_pickle
from tests.resume.checkpoints import Extra, write


def test_plain_values_are_read_and_no_code_of_the_file_runs(tmp_path):
    path = write(tmp_path / "a.ckpt", step=7, extra=[Extra(), {"a": Extra()}], call=functools.partial(print, "loaded"))
    before = Extra.loaded
    contents = read_contents(str(path))
    assert Extra.loaded == before
    assert (contents["epoch"], contents["global_step"]) == (1, 7)
    assert list(contents["state_dict"]) == ["weight", "bias"]
    assert isinstance(contents["state_dict"]["weight"], Opaque)
    assert isinstance(contents["extra"][0], Opaque)


def test_a_pickle_that_would_run_a_command_does_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "created"), "w"))

    assert isinstance(read_pickle(pickle.dumps(Evil())), Opaque)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "value",
    [
        collections.defaultdict(list, a=[1]),
        collections.Counter("aab"),
        collections.deque([1, 2]),
        {1, 2},
        frozenset({1}),
        torch.float32,
        type("Sub", (list,), {"__module__": __name__}),
        Exception("x"),
        1j,
        slice(1, 2),
        bytearray(b"x"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_any_other_value_is_passed_over(value, protocol, monkeypatch):
    if isinstance(value, type):
        monkeypatch.setitem(globals(), "Sub", value)
        value = value([1, 2])
    assert read_pickle(pickle.dumps({"epoch": 3, "other": value}, protocol))["epoch"] == 3


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", b"\x80\x02}q\x00."[:-1]])
def test_what_is_no_pickle(content):
    with pytest.raises(DamagedError, match="its contents cannot be read"):
        read_pickle(content)


def test_what_is_no_checkpoint(tmp_path):
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(DamagedError, match="holds no dict"):
        read_contents(str(tmp_path / "list.ckpt"))
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "script.ckpt"))
    with pytest.raises(DamagedError):
        read_contents(str(tmp_path / "script.ckpt"))
