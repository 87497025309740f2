import os

import pytest
import torch

from lightning_sm._checkpoint.candidates import list_candidates
from tests.resume.checkpoints import damage, write


def names(directory):
    return [candidate.name for candidate in list_candidates(str(directory))]


def test_the_newest_is_first_whatever_the_times_of_the_files_say(tmp_path):
    write(tmp_path / "epoch=1-step=10.ckpt", step=10)
    write(tmp_path / "best" / "epoch=0-step=5.ckpt", step=5, epoch=0)
    write(tmp_path / "a.ckpt", step=200)
    for index, name in enumerate(["a.ckpt", "epoch=1-step=10.ckpt", "best/epoch=0-step=5.ckpt"]):
        os.utime(tmp_path / name, (index, index))
    assert names(tmp_path) == ["a.ckpt", "epoch=1-step=10.ckpt", "best/epoch=0-step=5.ckpt"]


def test_of_the_same_step_the_one_that_is_further_on_is_first(tmp_path):
    write(tmp_path / "a-accumulated.ckpt", batches=12)
    write(tmp_path / "b-after-epoch.ckpt", epochs_done=2)
    write(tmp_path / "c-in-validation.ckpt", epochs_done=1)
    write(tmp_path / "last.ckpt", epochs_done=1)
    write(tmp_path / "z-old.ckpt", step=9)
    assert names(tmp_path) == [
        "a-accumulated.ckpt", "b-after-epoch.ckpt", "last.ckpt", "c-in-validation.ckpt", "z-old.ckpt"
    ]  # fmt: skip


def test_what_is_said_of_it(tmp_path):
    path = write(tmp_path / "last.ckpt", step=1200, epoch=3, loops=None)
    (candidate,) = list_candidates(str(tmp_path))
    assert str(candidate) == "last.ckpt (epoch 3, step 1200)"
    assert (candidate.size, candidate.batches, candidate.epochs_done) == (path.stat().st_size, 0, 0)
    assert candidate.problem is None


def test_what_is_no_candidate(tmp_path):
    for name in (".last.ckpt", ".hidden/a.ckpt", "a.ckpt.sagemaker-uploading", "a.ckpt.partial", "one/.two/deep.ckpt"):
        write(tmp_path / name)
    (tmp_path / "gone.ckpt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "finished.json").write_text("{}")
    assert names(tmp_path) == []
    assert names(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "it is empty"),
        ("truncated", "truncated"),
        ("half", "truncated"),
        ("text", "truncated"),
        ("flipped bit in the pickle", "not those that were written"),
    ],
)
def test_a_damaged_one_comes_last_with_its_reason(tmp_path, kind, reason):
    write(tmp_path / "a.ckpt", step=1)
    damage(write(tmp_path / "b.ckpt", step=2), kind)
    good, bad = list_candidates(str(tmp_path))
    assert (good.name, good.problem, bad.name) == ("a.ckpt", None, "b.ckpt")
    assert reason in bad.problem


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"optimizer_states": None}, "it holds weights only"),
        ({"global_step": None}, "it tells no epoch and step"),
        ({"epoch": "three"}, "it tells no epoch and step"),
        ({"pytorch-lightning_version": None}, "it tells no version of Lightning"),
    ],
)
def test_from_which_no_training_can_go_on(tmp_path, more, reason):
    write(tmp_path / "a.ckpt", **more)
    (candidate,) = list_candidates(str(tmp_path))
    assert reason in candidate.problem


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    write(tmp_path / "a.ckpt")

    def broken(path):
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr("lightning_sm._checkpoint.contents.os.path.getsize", broken)
    (candidate,) = list_candidates(str(tmp_path))
    assert "Input/output error" in candidate.problem


def test_the_digest_tells_versions_of_one_file_apart(tmp_path):
    digests = []
    for value in (1.0, 2.0):
        write(tmp_path / "a.ckpt", state_dict={"weight": torch.full((4000,), value)})
        (candidate,) = list_candidates(str(tmp_path))
        digests.append(candidate.digest(str(tmp_path), check=True))
        assert candidate.digest(str(tmp_path), check=False) == digests[-1]
    assert len(set(digests)) == 2
