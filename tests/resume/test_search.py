import os

import pytest

from lightning_sm._checkpoint.candidates import checkpoint_names, will_be_found

PATHS = [
    ("a.ckpt", True),
    ("one/a.ckpt", True),
    ("one/two/three/a.ckpt", True),
    ("./one/../a.ckpt", True),
    (".a.ckpt", False),
    (".one/a.ckpt", False),
    ("one/.two/a.ckpt", False),
    ("one.ckpt/two/a.ckpt", False),
    ("a.pt", False),
    ("../beside/a.ckpt", False),
    ("link/a.ckpt", False),
    ("inside/a.ckpt", True),
]


@pytest.mark.parametrize(("path", "is_found"), PATHS)
def test_what_is_expected_is_what_is_found(tmp_path, path, is_found):
    directory, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    for folder in (directory / "one", elsewhere):
        folder.mkdir(parents=True)
    (directory / "inside").symlink_to(directory / "one")
    if path.startswith("link"):
        (directory / "link").symlink_to(elsewhere)
    file = directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    assert will_be_found(str(directory), str(file)) is is_found
    found = {os.path.realpath(directory / name) for name in checkpoint_names(str(directory))}
    if path.startswith("link"):  # what is behind a link is there for this container only, and yet found
        assert found == {os.path.realpath(file)}
    elif is_found:
        assert os.path.realpath(file) in found
    else:
        assert os.path.realpath(file) not in found


def test_a_pattern_counts_as_a_path(tmp_path):
    assert will_be_found(str(tmp_path), str(tmp_path / "{epoch}/{val/loss:.2f}.ckpt"))
    assert not will_be_found(str(tmp_path), "s3://bucket/a.ckpt")


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "back").symlink_to(tmp_path / "one")
    (tmp_path / "one" / "a.ckpt").write_text("")
    assert list(checkpoint_names(str(tmp_path))) == ["one/a.ckpt"]
