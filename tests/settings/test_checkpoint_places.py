"""Where ``ModelCheckpoint`` callbacks of several trainers save, and where a program and its restart find that."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch

from lightning_sm import trainer_settings
from lightning_sm._lightning import Namespace
from lightning_sm._resume.fits import forget_fits
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings import checkpoint_places, redirect
from lightning_sm._settings.checkpoint_places import CheckpointPlaces
from tests.settings.given import context_of

PL = Namespace("pytorch_lightning")
CHECKPOINT = PL.module("callbacks").ModelCheckpoint
JOB = TrainingJob(
    in_container=True,
    output_data_dir="/ml/out",
    sources={"output_data_dir": "SM_OUTPUT_DATA_DIR", "checkpoint_dir": "checkpointconfig.json"},
)
# Lightning 1.5 takes it for a path.
LAST = {"ckpt_path": "last"} if hasattr(CHECKPOINT, "_find_last_checkpoints") else {}


@pytest.mark.parametrize("told", ["best", "."])
def test_a_program_finds_its_checkpoints_where_it_told_a_callback_to_save(tmp_path, monkeypatch, told):
    (tmp_path / "code" / "best").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "code")
    directory = tmp_path / "ml" / "checkpoints"
    job = dataclasses.replace(JOB, base_dir=str(tmp_path / "ml"), checkpoint_dir=str(directory))
    callback = PL.module("callbacks").ModelCheckpoint(told, filename="{epoch}/best")
    Path(told, "mine.ckpt").write_text("mine")
    places = CheckpointPlaces(context_of(job))
    for _ in range(2):  # with the trainer, and with its fit
        places.route([callback])
    kept = directory / told
    assert callback.dirpath == str(kept)
    # That of a series of saves is no checkpoint of the callback's.
    for name in ("epoch=1/best.ckpt", "mine.ckpt", "old.ckpt", "shards.ckpt/0", "train-1a2b3c/fit-0/step-7.ckpt"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text("saved")
    places.link_checkpoints()
    (kept / "old.ckpt").unlink()
    places.link_checkpoints()
    found = {str(path.relative_to(told)) for path in Path(told).rglob("*.ckpt")}
    assert found == {"epoch=1/best.ckpt", "mine.ckpt", "shards.ckpt"}
    texts = [Path(told, name).read_text() for name in ("epoch=1/best.ckpt", "mine.ckpt", "shards.ckpt/0")]
    assert texts == ["saved", "mine", "saved"]
    shutil.rmtree(Path(told).resolve())
    assert (kept / "shards.ckpt" / "0").exists()


class Program:
    """A program in the container, each start of which stands for a process of its own."""

    def __init__(self, container, monkeypatch):
        self.checkpoints = container.base / "checkpoints"
        self.checkpoints.mkdir()
        self.output = container.base / "output" / "data"
        self.monkeypatch = monkeypatch

    def start(self):
        shutil.rmtree(self.output, ignore_errors=True)
        forget_fits()
        for module, name, value in ((checkpoint_places, "_links", set()), (redirect, "_sources", {})):
            self.monkeypatch.setattr(module, name, value)
        torch.manual_seed(1)

    def trainer(self, *callbacks, name="lightning_logs", **arguments):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1, "accelerator": "cpu"}
        logger = PL.module("loggers").CSVLogger("logs", name=name)
        settings = {"sagemaker": {"save_every": "1ms"}, "logger": logger, "callbacks": list(callbacks), **quiet}
        return PL.module().Trainer(**trainer_settings(**{**settings, **arguments}))

    def fit(self, trainer, **arguments):
        """Fit a new model; return its weights."""
        from tiny_data import TinyData
        from tiny_model import TinyModel

        model = TinyModel()
        trainer.fit(model, TinyData("x"), **arguments)
        return model.layer.weight.tolist()

    def folder(self, fit):
        """The default directory of a fit."""
        if fit == 0:
            return self.checkpoints
        (series,) = self.checkpoints.glob(f"*/fit-{fit}")
        return series / "checkpoints"


@pytest.fixture
def program(container, one_namespace, monkeypatch):
    return Program(container, monkeypatch)


def links(folder):
    """The names of the links in a folder, and the folders that they lead to."""
    found = list(Path(folder).rglob("*.ckpt"))
    return sorted(path.name for path in found), {Path(os.readlink(path)).parent for path in found}


def test_the_checkpoints_of_each_trainer_are_its_own_as_those_of_its_logger_are(program):
    def folds():
        program.start()
        weights, best = [], []
        for fold in range(2):
            own = CHECKPOINT(filename="best", save_last=True)
            trainer = program.trainer(own, name=f"fold{fold}")
            weights.append(program.fit(trainer, **LAST))
            best.append(own.best_model_path)
            assert links(f"{trainer.log_dir}/checkpoints") == (["best.ckpt", "last.ckpt"], {program.folder(fold)})
        return weights, best

    weights, best = folds()
    assert weights[0] != weights[1]
    assert best == [str(program.folder(fold) / "best.ckpt") for fold in range(2)]
    assert all(path.is_dir() for path in program.output.glob("fold*/version_0/checkpoints"))
    assert folds() == (weights, best)  # a restart trains nothing


def test_a_trainer_keeps_its_directory_and_a_search_or_validation_chooses_none(program):
    from tiny_data import TinyData
    from tiny_model import TinyModel

    program.start()
    program.fit(program.trainer())
    trainer = program.trainer(CHECKPOINT(filename="{epoch}", save_top_k=-1))
    trainer.validate(TinyModel(), TinyData("x"), verbose=False)
    program.fit(trainer)
    trainer.fit_loop.max_epochs = 2
    program.fit(trainer)
    assert Path(trainer.checkpoint_callback.dirpath) == program.folder(1)
    assert not any(program.folder(2).glob("*"))
    names, folders = links(f"{trainer.log_dir}/checkpoints")
    assert (len(names), folders) == (2, {program.folder(1)})


def test_a_callback_that_names_its_directory_in_its_setup_saves_in_the_jobs(program):
    class Own(CHECKPOINT):
        def setup(self, trainer, *arguments, **more):
            self.dirpath = os.path.join(trainer.log_dir, "own")
            super().setup(trainer, *arguments, **more)

    program.start()
    own = Own()
    trainer = program.trainer(own)
    program.fit(trainer)
    folder = Path(own.best_model_path).parent
    assert program.checkpoints in folder.parents
    assert folder.name == "own"
    assert links(f"{trainer.log_dir}/own") == ([Path(own.best_model_path).name], {folder})


def test_a_restart_links_what_an_earlier_start_has_saved_under_another_name(program):
    for start in range(2):
        program.start()
        own = CHECKPOINT(f"runs/{start}")
        program.fit(program.trainer(own))
        assert links(f"runs/{start}") == ([Path(own.best_model_path).name], {program.checkpoints / "runs" / "0"})
