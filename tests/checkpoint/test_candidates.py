import os

import pytest
import torch

from lightning_sm import Hyperparameters, TrainingJob
from lightning_sm._checkpoint.candidates import JobIdentity, find_checkpoints, is_discoverable, list_candidates
from tests.checkpoint.checkpoint_files import damage, write


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
        ("flipped bit in the pickle", "is corrupted"),
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
        ({"global_step": None}, "it has no epoch and global_step"),
        ({"epoch": "three"}, "it has no epoch and global_step"),
        ({"pytorch-lightning_version": None}, "it has no pytorch-lightning_version"),
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

    monkeypatch.setattr("lightning_sm._checkpoint.integrity.os.path.getsize", broken)
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
    assert is_discoverable(str(directory), str(file)) is is_found
    found = {os.path.realpath(directory / name) for name in find_checkpoints(str(directory))}
    if path.startswith("link"):  # what is behind a link is there for this container only, and yet found
        assert found == {os.path.realpath(file)}
    elif is_found:
        assert os.path.realpath(file) in found
    else:
        assert os.path.realpath(file) not in found


def test_a_pattern_counts_as_a_path(tmp_path):
    assert is_discoverable(str(tmp_path), str(tmp_path / "{epoch}/{val/loss:.2f}.ckpt"))
    assert not is_discoverable(str(tmp_path), "s3://bucket/a.ckpt")


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "back").symlink_to(tmp_path / "one")
    (tmp_path / "one" / "a.ckpt").write_text("")
    assert list(find_checkpoints(str(tmp_path))) == ["one/a.ckpt"]


CONFIG = {
    "model": {"class_path": "Net", "init_args": {"lr": 0.1, "sizes": [1, 2]}},
    "data": {"data_dir": "/tmp/one/input/data/training"},
    "trainer": {"max_epochs": 3, "devices": 2, "precision": 32, "callbacks": [{"init_args": {"patience": 3}}]},
    "sagemaker": {"resume": "auto"},
    "seed_everything": 5,
}


def identity(config=CONFIG, name=None, base="/tmp/one", **hyperparameters):
    job = TrainingJob(in_container=True, name=name, base_dir=base, hyperparameters=Hyperparameters(hyperparameters))
    return JobIdentity.of(job, config)


def changed(key, value):
    group, name = key.split(".") if "." in key else (key, None)
    return {**CONFIG, group: value if name is None else {**CONFIG[group], name: value}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.max_epochs", 9),
        ("trainer.devices", 4),
        ("trainer.num_nodes", 2),
        ("trainer.logger", False),
        ("sagemaker.resume", "always"),
        ("seed_everything", 6),
        ("trainer.callbacks", object()),
    ],
)
def test_what_a_restart_may_change(key, value):
    assert set(identity(changed(key, value)).differences(identity())) <= {"trainer.callbacks"}


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model", {"class_path": "Net", "init_args": {"lr": 0.5, "sizes": [1, 2]}}, "model.lr"),
        ("data.data_dir", "/mnt", "data.data_dir"),
        ("trainer.precision", 16, "trainer.precision"),
        ("trainer.callbacks", [{"init_args": {"patience": 4}}], "trainer.callbacks"),
    ],
)
def test_what_makes_another_job(key, value, named):
    other = identity(changed(key, value))
    assert other.differences(identity()) == (named,)
    assert not other.is_same_job(identity())


def test_hyperparameters_count_too():
    assert identity({}, epochs=3).differences(identity({}, epochs=4)) == ("epochs",)
    assert identity({}, seed_everything=3).differences(identity({}, seed_everything=4)) == ("seed",)
    assert identity(**{"trainer.max_epochs": 3}) == identity(**{"trainer.max_epochs": 4})


def test_the_base_directory_does_not_count():
    config = changed("data.data_dir", "/tmp/two/input/data/training")
    assert identity(config, base="/tmp/two") == identity()


def test_a_name_decides():
    assert identity(name="a").is_same_job(identity({}, name="a"))
    assert not identity(name="a").is_same_job(identity(name="b"))
    assert identity(name="a").is_same_job(identity())


def test_it_is_plain_and_tells_no_values():
    plain = identity(name="a", key="secret").to_dict()
    assert JobIdentity.from_dict(plain) == identity(name="a", key="secret")
    assert "secret" not in str(plain)
    for other in (None, 3, {}, {"job_name": 3, "settings": {}}, {"job_name": None, "settings": []}):
        assert JobIdentity.from_dict(other) is None
