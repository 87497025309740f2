import pytest
import pytorch_lightning as pl
import torch

from lightning_sm._checkpoint.integrity import load_unrestricted, weights_only_error
from lightning_sm._checkpoint.resume import Choice, Rejected, choose_checkpoint
from tests.checkpoint import checkpoint_files
from tests.checkpoint.checkpoint_files import Extra, damage, write
from tests.projects.container import log_lines


@pytest.fixture(scope="module")
def trainer():
    return pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)


def test_the_newest_that_is_whole(trainer, tmp_path):
    write(tmp_path / "a.ckpt", step=10)
    for step, kind in enumerate(("empty", "half", "flipped bit in a tensor", "zeros in its middle"), start=20):
        damage(write(tmp_path / f"{step}.ckpt", step=step), kind)
    choice = choose_checkpoint(trainer, str(tmp_path))
    assert choice.candidate.name == "a.ckpt"
    assert {rejected.name for rejected in choice.rejected} == {"20.ckpt", "21.ckpt", "22.ckpt", "23.ckpt"}
    assert str(choice).startswith("Resuming from a.ckpt (epoch 1, step 10); Rejected ")
    assert "Rejected 20.ckpt: it is empty" in str(choice)
    assert choice.unloadable == ()


def test_older_ones_are_not_read_whole(trainer, tmp_path):
    damage(write(tmp_path / "a.ckpt", step=10), "flipped bit in a tensor")
    write(tmp_path / "b.ckpt", step=11)
    assert choose_checkpoint(trainer, str(tmp_path)).rejected == ()


@pytest.mark.parametrize("there", [True, False])
def test_nothing_to_go_on_from(trainer, tmp_path, there):
    if there:
        damage(write(tmp_path / "a.ckpt"), "truncated")
    choice = choose_checkpoint(trainer, str(tmp_path))
    assert choice.candidate is None
    assert len(choice.rejected) == there
    assert str(choice).startswith("No checkpoint to resume from")


def test_what_is_whole_and_does_not_load(trainer, tmp_path, monkeypatch):
    write(tmp_path / "a.ckpt", step=1)
    write(tmp_path / "b.ckpt", step=2, extra=Extra())
    monkeypatch.delattr(checkpoint_files, "Extra")
    choice = choose_checkpoint(trainer, str(tmp_path))
    assert choice.candidate.name == "a.ckpt"
    (rejected,) = choice.unloadable
    assert rejected.name == "b.ckpt"
    assert "AttributeError" in rejected.reason
    assert "Extra" in rejected.reason


CANNOT_RESTRICT = "weights_only" not in torch.load.__code__.co_varnames


@pytest.mark.skipif(CANNOT_RESTRICT, reason="torch before 1.13 cannot restrict")
def test_only_what_needs_it_is_trusted(tmp_path):
    plain = tmp_path / "plain.ckpt"
    torch.save({"epoch": 1, "state_dict": {"weight": torch.ones(2)}}, plain)
    assert weights_only_error(str(plain)) is None
    before = Extra.loaded
    path = str(write(tmp_path / "extra.ckpt", extra=Extra()))
    why = weights_only_error(path)
    assert "tests.checkpoint.checkpoint_files" in why or "Unsupported" in why
    assert "trust" not in why
    assert Extra.loaded == before
    load_unrestricted(path)
    assert Extra.loaded == before + 1


def test_the_warning_comes_before_the_code_runs(trainer, tmp_path, monkeypatch):
    write(tmp_path / "extra.ckpt", extra=Extra())
    with log_lines() as said:
        monkeypatch.setattr(Extra, "__setstate__", lambda self, state: said.append("loaded"))
        assert choose_checkpoint(trainer, str(tmp_path)).candidate.name == "extra.ckpt"
    warning, *loaded = said
    assert warning.startswith("Loading extra.ckpt with weights_only=False, which runs code that it names (")
    assert set(loaded) == {"loaded"}


def test_no_code_runs_where_that_is_forbidden(trainer, tmp_path):
    write(tmp_path / "a.ckpt", step=1)
    write(tmp_path / "b.ckpt", step=2, extra=Extra())
    before = Extra.loaded
    choice = choose_checkpoint(trainer, str(tmp_path), weights_only=True)
    assert Extra.loaded == before
    # torch 1.13 lets no parameter pass, which this file holds.
    if weights_only_error(str(tmp_path / "a.ckpt")) is None:
        assert choice.candidate.name == "a.ckpt"
    else:
        assert choice.candidate is None
    (*_, rejected) = sorted(choice.unloadable, key=lambda rejected: rejected.name)
    assert rejected.name == "b.ckpt"
    assert "runs code when it is loaded (" in rejected.reason
    assert "sagemaker.resume_weights_only forbids" in rejected.reason


def test_a_choice_can_be_printed_and_compared():
    rejected = Rejected("a.ckpt", "it is empty")
    assert str(rejected) == "Rejected a.ckpt: it is empty"
    assert Choice(rejected=(rejected,)) == Choice(rejected=(Rejected("a.ckpt", "it is empty"),))
    assert str(Choice()) == "No checkpoint to resume from"
