import json
import os

import pytest

from lightning_sm._export._directory import files_below, take_places


def stage(tmp_path, *names):
    staging = tmp_path / "staging"
    for name in names:
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"files": [each for each in names if each != "model.json"]}))
    return str(staging)


def test_the_description_comes_last(tmp_path):
    staging = stage(tmp_path, "model.json", "model.pt", "code/inference.py", "z.txt")
    assert files_below(staging) == ["code/inference.py", "model.pt", "z.txt", "model.json"]


def test_files_of_an_older_export_go_and_others_stay(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "mine.txt").write_text("somebody's own")
    take_places(stage(tmp_path, "model.json", "model.onnx", "code/inference.py"), str(directory))
    take_places(stage(tmp_path, "model.json", "model.pt"), str(directory))
    assert files_below(str(directory)) == ["mine.txt", "model.pt", "model.json"]


@pytest.mark.parametrize("about", ["[]", "{", '{"files": ["../mine.txt", "/mine.txt", 1]}', '{"files": null}'])
def test_a_description_that_is_not_ours_removes_nothing(tmp_path, about):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.json").write_text(about)
    (tmp_path / "mine.txt").write_text("somebody's own")
    take_places(stage(tmp_path, "model.json", "model.pt"), str(directory))
    assert os.listdir(tmp_path / "staging") == []
    assert (tmp_path / "mine.txt").exists()
    assert files_below(str(directory)) == ["model.pt", "model.json"]
