import io
import json
import math
import os
import random

import numpy
import pytest
import torch

from lightning_sm._export import ModelSummary, Source, load_file, write_model
from lightning_sm._export.writer import files_below, move_into_place
from lightning_sm.errors import ExportError, OutputError

SUMMARY = ModelSummary("m.Model", {"loss": 0.5}, {"torch": "1"}, "x.ckpt", 0.25, "val_loss", 2, 16)


def state_dict(value=1.0):
    return {"weight": torch.full((2, 3), value, requires_grad=True), "steps": 5, "name": "x"}


def test_written_files(tmp_path):
    path = write_model(str(tmp_path / "model"), Source(state_dict()), SUMMARY, "trainer: {}\n")
    assert path == str(tmp_path / "model" / "model.pt")
    loaded = load_file(path, weights_only=True)
    assert torch.equal(loaded["weight"], torch.ones(2, 3))
    assert not loaded["weight"].requires_grad
    assert (loaded["steps"], loaded["name"]) == (5, "x")
    assert json.loads((tmp_path / "model" / "model.json").read_text()) == {
        "class_path": "m.Model",
        "metrics": {"loss": 0.5},
        "versions": {"torch": "1"},
        "checkpoint": "x.ckpt",
        "score": 0.25,
        "monitor": "val_loss",
        "epoch": 2,
        "global_step": 16,
        "ended": True,
        "stopped_by": None,
        "world_size": 1,
        "strategy": None,
        "hparams": None,
        "format": "state_dict",
        "file": "model.pt",
        "files": ["config.yaml", "model.pt"],
        "submodule": None,
        "example": None,
        "comparison": {"compared": "tensors", "tensors": 3},
        "details": {},
    }
    assert (tmp_path / "model" / "config.yaml").read_text() == "trainer: {}\n"
    assert sorted(os.listdir(tmp_path / "model")) == ["config.yaml", "model.json", "model.pt"]


@pytest.mark.parametrize("value", [random.Random(3), io.BytesIO(b"tree"), numpy.arange(3), math.nan])
def test_a_state_dict_with_other_objects(tmp_path, value):
    path = write_model(str(tmp_path), Source({**state_dict(), "extra": value}), SUMMARY)
    assert type(load_file(path, weights_only=False)["extra"]) is type(value)


def test_a_state_dict_that_pickle_cannot_write_is_rejected(tmp_path):
    write_model(str(tmp_path), Source(state_dict()), SUMMARY)
    with pytest.raises(ExportError, match=r"could not be written to .* HINT: pickle must be able"):
        write_model(str(tmp_path), Source({**state_dict(2.0), "extra": lambda: 1}), SUMMARY)
    assert load_file(str(tmp_path / "model.pt"), weights_only=True)["weight"][0, 0] == 1
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.pt"]


@pytest.mark.parametrize(
    "broken", ["torch.save", "lightning_sm._export.ModelSummary.as_json", "lightning_sm._export.writer.flush"]
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_keeps_the_previous_export(tmp_path, monkeypatch, broken, error):
    write_model(str(tmp_path), Source(state_dict()), SUMMARY, "old")

    def crash(*_, **__):
        raise error

    monkeypatch.setattr(broken, crash)
    with pytest.raises(ExportError if isinstance(error, OSError) else KeyboardInterrupt):
        write_model(str(tmp_path), Source(state_dict(2.0)), SUMMARY, "new")
    monkeypatch.undo()
    assert load_file(str(tmp_path / "model.pt"), weights_only=True)["weight"][0, 0] == 1
    assert (tmp_path / "config.yaml").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["config.yaml", "model.json", "model.pt"]


def test_a_folder_by_the_name_of_the_model(tmp_path):
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(ExportError, match=r"IsADirectoryError.*model\.pt.* HINT: The program has written something"):
        write_model(str(tmp_path), Source(state_dict()), SUMMARY)


def test_url_is_not_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="s3://bucket/x is not on this host"):
        write_model("s3://bucket/x", Source({}), SUMMARY)
    assert os.listdir(tmp_path) == []


def stage(tmp_path, *names):
    staging = tmp_path / "staging"
    for name in names:
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"files": [each for each in names if each != "model.json"]}))
    return str(staging)


def test_files_of_a_previous_export_are_removed_and_others_kept(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "mine.txt").write_text("somebody's own")
    move_into_place(stage(tmp_path, "model.json", "model.onnx", "code/inference.py"), str(directory))
    move_into_place(stage(tmp_path, "model.json", "model.pt"), str(directory))
    assert files_below(str(directory)) == ["mine.txt", "model.pt", "model.json"]


@pytest.mark.parametrize("about", ["[]", "{", '{"files": ["../mine.txt", "/mine.txt", 1]}', '{"files": null}'])
def test_foreign_model_json_removes_nothing(tmp_path, about):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.json").write_text(about)
    (tmp_path / "mine.txt").write_text("somebody's own")
    move_into_place(stage(tmp_path, "model.json", "model.pt"), str(directory))
    assert os.listdir(tmp_path / "staging") == []
    assert (tmp_path / "mine.txt").exists()
    assert files_below(str(directory)) == ["model.pt", "model.json"]
