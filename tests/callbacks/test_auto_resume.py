import json
import logging
import os

import pytest
import torch

from lightning_sm._checkpoint.candidates import JOB_KEY, JobIdentity
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import auto_resume, callback_class
from lightning_sm.errors import CheckpointError
from tests.checkpoint.checkpoint_files import damage
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import Container, log_lines

# Batches in an epoch.
EPOCH = 8


class Interrupted(Exception):
    pass


class Job:
    """A training that can be restarted in a directory. Each fit stands for a process of its own."""

    def __init__(self, namespace, directory, export):
        self.namespace = namespace
        self.pl = namespace.module()
        self.directory = directory
        self.export = export
        self.identity = JobIdentity("this-job")

    def fit(
        self,
        epochs=3,
        *,
        resume="auto",
        stop_after=None,
        model=None,
        callbacks=(),
        ckpt_path=None,
        weights_only=False,
        **arguments,
    ):
        """Fit, and return the trainer. ``steps`` counts what was trained; ``said`` has the log's lines."""
        model = tiny_model(self.pl) if model is None else model
        self.model, self.steps = model, 0
        batch_end = model.on_train_batch_end

        def count(*given, **named):
            self.steps += 1
            if stop_after == self.steps:
                raise Interrupted
            return batch_end(*given, **named)

        model.on_train_batch_end = count
        each_epoch = self.pl.callbacks.ModelCheckpoint(
            self.directory, "last", mode="max", every_n_epochs=1, save_on_train_epoch_end=True
        )
        own = [
            callback_class(self.namespace, "AutoResume")(str(self.directory), resume, self.identity, weights_only),
            *callbacks,
        ]
        own.append(callback_class(self.namespace, "ModelExport")(str(self.export)))
        trainer = self.pl.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[*own, each_epoch], default_root_dir=str(self.directory), **arguments,
        )  # fmt: skip
        with log_lines() as self.said:
            trainer.fit(model, loader(), loader(), ckpt_path=ckpt_path)
        return trainer

    def interrupted(self, after, **more):
        with pytest.raises(Interrupted):
            self.fit(stop_after=after, **more)
        return self

    def new_process(self, identity=None):
        auto_resume._finished_directories.clear()
        self.identity = identity or self.identity
        return self

    @property
    def weights(self):
        return weights(self.model)

    @property
    def checkpoints(self):
        return sorted(path for path in self.directory.glob("*.ckpt"))

    def exported(self):
        return torch.load(self.export / "model.pt")


@pytest.fixture(params=installed_namespaces(), ids=lambda namespace: namespace.name)
def job(request, tmp_path):
    logging.getLogger("lightning_sm").setLevel(logging.INFO)
    auto_resume._finished_directories.clear()
    (tmp_path / "checkpoints").mkdir()
    return Job(request.param, tmp_path / "checkpoints", tmp_path / "model")


@pytest.fixture
def uninterrupted(job, tmp_path):
    """The weights of three epochs without interruption."""
    elsewhere = Job(job.namespace, tmp_path / "elsewhere", tmp_path / "other model")
    elsewhere.fit()
    assert elsewhere.steps == 3 * EPOCH
    return elsewhere.weights


def test_it_goes_on_with_the_weights_of_a_run_without_interruption(job, uninterrupted):
    job.interrupted(after=2 * EPOCH + 1)
    trainer = job.fit()
    assert job.steps == EPOCH
    assert trainer.global_step == 3 * EPOCH
    assert job.weights == uninterrupted
    (resuming,) = [line for line in job.said if line.startswith("Resuming from")]
    assert f"step {2 * EPOCH})" in resuming


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    older = job.directory / "older.ckpt"
    older.write_bytes(job.checkpoints[0].read_bytes())
    job.interrupted(after=EPOCH + 1)
    newest = next(path for path in job.checkpoints if path != older)
    damage(newest, "flipped bit in a tensor")
    job.fit()
    assert job.steps == 2 * EPOCH
    assert job.weights == uninterrupted
    assert any(line.startswith(f"Rejected {newest.name}: its record") for line in job.said)


@pytest.mark.parametrize(
    ("below", "filename"), [("exp/run1", "{epoch}"), ("exp", "run1/two/{epoch}"), ("a/b/c/d", None)]
)
def test_checkpoints_may_be_deep_below(job, below, filename):
    def deep():
        folder = str(job.directory / below)
        return [job.pl.callbacks.ModelCheckpoint(folder, filename, every_n_train_steps=2, every_n_epochs=0)]

    job.interrupted(after=EPOCH + 5, callbacks=deep())
    for path in job.checkpoints:
        path.unlink()
    job.fit(callbacks=deep())
    assert job.steps < 3 * EPOCH
    assert any(line.startswith(f"Resuming from {below}/") for line in job.said)


def test_where_all_are_damaged_it_says_so_and_starts_from_scratch(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    for path in job.checkpoints:
        damage(path, "truncated")
    job.fit()
    assert job.steps == 3 * EPOCH
    assert job.weights == uninterrupted
    assert any("training starts from scratch" in line for line in job.said)
    assert any("Rejected" in line and "truncated" in line for line in job.said)


def test_require_stops_where_there_is_none(job):
    with pytest.raises(CheckpointError, match=r"sagemaker.resume is require, and no checkpoint in .*: there is none"):
        job.fit(resume="require")
    assert job.steps == 0
    job.interrupted(after=EPOCH + 1)
    for path in job.checkpoints:
        damage(path, "empty")
    with pytest.raises(CheckpointError, match="it is empty"):
        job.fit(resume="require")


def test_require_goes_on_where_there_is_one(job, uninterrupted):
    job.interrupted(after=EPOCH + 1).fit(resume="require")
    assert job.weights == uninterrupted


def test_never_starts_from_scratch_and_says_what_is_there(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    job.fit(resume="never")
    assert job.steps == 3 * EPOCH
    assert job.weights == uninterrupted
    assert any("are not used: sagemaker.resume is never" in line for line in job.said)


@pytest.mark.parametrize("value", ["yes", "Auto", "", None, True])
def test_any_other_word_is_refused(job, value):
    with pytest.raises(CheckpointError, match="HINT: Choose one of auto, always, never, require"):
        job.fit(resume=value)


def test_a_path_that_is_given_to_fit_wins(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    given = job.directory.parent / "given.ckpt"
    given.write_bytes(job.checkpoints[0].read_bytes())
    job.interrupted(after=EPOCH + 1)  # the directory has a newer one now
    job.fit(ckpt_path=str(given), resume="require")
    assert job.steps == 2 * EPOCH
    assert job.weights == uninterrupted
    assert any(line.startswith(f"Resuming from {given}, given as ckpt_path") for line in job.said)


def test_a_changed_model_stops_with_what_has_changed(job):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(job.pl)
    model.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.ReLU())
    job.fit(model=model, epochs=2)  # no weights have changed
    job.new_process()
    model = tiny_model(job.pl)
    model.layers = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    model.head = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError) as caught:
        job.fit(model=model)
    text = str(caught.value)
    assert 'Missing key(s) in state_dict: "head.weight", "head.bias"' in text
    assert "size mismatch for layers.0.weight" in text
    assert "HINT: Undo what has changed since it was saved. Set sagemaker.resume to never" in text
    assert job.steps == 0


def test_a_changed_optimizer_stops(job):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(job.pl)
    first, second = list(model.parameters())[:2], list(model.parameters())[2:]
    model.configure_optimizers = lambda: torch.optim.SGD([{"params": first}, {"params": second}], lr=0.05)
    with pytest.raises(CheckpointError, match=r"does not fit this model or trainer: .*parameter group"):
        job.fit(model=model)


def test_a_model_that_changes_what_it_loads_may(job):
    job.interrupted(after=EPOCH + 1)
    model = tiny_model(job.pl)
    model.more = torch.nn.Linear(1, 1)
    del model.layers[2]
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.05)

    def on_load_checkpoint(checkpoint):
        state = checkpoint["state_dict"]
        state["more.weight"], state["more.bias"] = model.more.weight.detach(), model.more.bias.detach()
        del state["layers.2.weight"], state["layers.2.bias"]

    model.on_load_checkpoint = on_load_checkpoint
    job.fit(model=model, epochs=2)
    assert job.steps == EPOCH


def test_what_is_whole_and_does_not_load_stops(job, monkeypatch):
    from tests.checkpoint import checkpoint_files

    class Saves(job.pl.Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["extra"] = checkpoint_files.Extra()

    job.interrupted(after=EPOCH + 1, callbacks=[Saves()])
    job.fit(epochs=2)
    assert job.steps == EPOCH
    assert any("with weights_only=False" in line for line in job.said)
    job.new_process().interrupted(after=EPOCH + 1, callbacks=[Saves()], epochs=4)
    monkeypatch.delattr(checkpoint_files, "Extra")
    with pytest.raises(CheckpointError, match=r"are intact, but this program cannot load them: .*AttributeError"):
        job.fit(epochs=4)


def test_a_foreign_file_is_rejected_by_its_name(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    (job.directory / "pretrained").mkdir()
    torch.save({"epoch": 9, "global_step": 999, "optimizer_states": []}, job.directory / "pretrained" / "net.ckpt")
    (job.directory / "pretrained" / "other.ckpt").write_text("model_checkpoint_path: other")
    job.fit()
    assert job.steps == 2 * EPOCH
    assert job.weights == uninterrupted
    assert (
        "Rejected pretrained/net.ckpt: it is not a Lightning checkpoint: it has no pytorch-lightning_version"
        in job.said
    )
    assert any(
        line.startswith("Rejected pretrained/other.ckpt: it is truncated, or was not written by torch.save")
        for line in job.said
    )


def test_a_checkpoint_that_lacks_something_says_what(job):
    job.interrupted(after=EPOCH + 1)
    (saved,) = job.checkpoints
    content = torch.load(saved)
    del content["state_dict"]
    torch.save(content, saved)
    with pytest.raises(CheckpointError, match=r"last.*\.ckpt .* does not fit .*: it has no entry 'state_dict'"):
        job.fit()


def test_code_of_checkpoints_may_be_forbidden(job):
    from tests.checkpoint import checkpoint_files

    class Saves(job.pl.Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["extra"] = checkpoint_files.Extra()

    job.interrupted(after=EPOCH + 1, callbacks=[Saves()])
    before = checkpoint_files.Extra.loaded
    with pytest.raises(
        CheckpointError, match=r"resume_weights_only forbids\. HINT: Set sagemaker\.resume_weights_only to"
    ):
        job.fit(weights_only=True)
    assert checkpoint_files.Extra.loaded == before
    assert job.steps == 0


def test_a_finished_job_trains_no_further_and_exports_again(job, uninterrupted):
    job.fit()
    before = job.exported()
    for path in job.export.iterdir():
        path.unlink()
    job.new_process()
    trainer = job.fit(resume="require")
    assert job.steps == 0
    assert trainer.global_step == 3 * EPOCH
    assert job.weights == uninterrupted
    assert any("This job had finished with" in line and line.endswith("no training is left") for line in job.said)
    after = job.exported()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (job.directory / "finished.json").is_file()


@pytest.mark.parametrize("least", [{"min_epochs": 2}, {"min_steps": 2 * EPOCH}], ids=str)
def test_a_job_that_stopped_early_trains_no_further(job, least):
    class Enough(job.pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch >= 1

    # The checkpoint of the last validation does not count the epoch that it belongs to.
    in_validation = job.pl.callbacks.ModelCheckpoint(job.directory, "validated", save_on_train_epoch_end=False)
    job.fit(epochs=9, callbacks=[Enough(), in_validation], **least)
    assert job.steps == 2 * EPOCH
    finished = json.loads((job.directory / "finished.json").read_text())
    for path in job.checkpoints:
        if path.name.startswith("last"):
            path.unlink()
    (validated,) = job.checkpoints
    (job.directory / "finished.json").write_text(json.dumps({**finished, "checkpoint": validated.name}))
    job.new_process()
    in_validation = job.pl.callbacks.ModelCheckpoint(job.directory, "validated", save_on_train_epoch_end=False)
    trainer = job.fit(epochs=9, callbacks=[Enough(), in_validation], **least)
    assert job.steps == 0
    assert trainer.fit_loop.min_epochs is not None or "min_epochs" not in least


def test_a_finished_job_with_a_higher_limit_trains_on(job, uninterrupted):
    job.fit(epochs=2)
    job.new_process().fit(epochs=3)
    assert job.steps == EPOCH
    assert job.weights == uninterrupted
    assert json.loads((job.directory / "finished.json").read_text())["limits"]["max_epochs"] == 3


def test_the_note_of_the_end_goes_when_training_goes_on(job):
    job.fit(epochs=1)
    job.new_process().interrupted(after=1, epochs=2)
    assert not (job.directory / "finished.json").exists()


def test_the_end_is_saved_where_nothing_else_saves_it(job):
    own = callback_class(job.namespace, "AutoResume")(str(job.directory))
    rarely = job.pl.callbacks.ModelCheckpoint(job.directory, "rare", every_n_train_steps=5)
    trainer = job.pl.Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[own, rarely],
        accelerator="cpu",
    )  # fmt: skip
    trainer.fit(tiny_model(job.pl), loader())
    assert "final.ckpt" in os.listdir(job.directory)
    finished = json.loads((job.directory / "finished.json").read_text())
    assert (finished["checkpoint"], finished["global_step"]) == ("final.ckpt", EPOCH)


def test_the_model_is_exported_where_the_end_cannot_be_noted(job, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(auto_resume, "write_finished", full)
    job.fit(epochs=1)
    assert any("finished.json could not be written" in line and "No space left" in line for line in job.said)
    assert job.exported()


OTHER = JobIdentity("other-job", {"model.lr": "1"})


@pytest.mark.parametrize("has_finished", [True, False])
def test_another_job_stops_and_is_told_what_to_do(job, has_finished):
    if has_finished:
        job.fit(epochs=2)
    else:
        job.interrupted(after=EPOCH + 1)
    left = {path: path.read_bytes() for path in job.directory.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        job.new_process(OTHER).fit(epochs=2)
    text = str(caught.value)
    assert "was written by the job this-job, and this is the job other-job; they differ in model.lr" in text
    assert "checkpoint_s3_uri of its own" in text
    assert "sagemaker.resume to always" in text
    assert "ckpt_path" in text
    assert job.steps == 0
    assert {path: path.read_bytes() for path in job.directory.iterdir()} == left


@pytest.mark.parametrize("resume", ["always", "require"])
def test_another_job_goes_on_where_that_is_asked_for(job, uninterrupted, resume):
    job.interrupted(after=EPOCH + 1)
    job.new_process(OTHER).fit(resume=resume)
    assert job.steps == 2 * EPOCH
    assert job.weights == uninterrupted
    assert any("was written by the job this-job, and this is the job other-job." in line for line in job.said)
    # From then on they are its own.
    job.new_process().fit(resume="auto")
    assert job.steps == 0
    assert any("This job had finished" in line for line in job.said)


def test_the_model_of_another_job_is_told_of(job):
    job.fit(epochs=2)
    job.new_process(OTHER).fit(epochs=2, resume="always")
    assert job.steps == 0
    assert any("That job had finished" in line for line in job.said)


def test_another_job_may_start_from_its_weights(job):
    job.fit(epochs=1)
    (saved,) = job.checkpoints
    job.new_process(OTHER).fit(epochs=2, ckpt_path=str(saved))
    assert job.steps == EPOCH


def test_a_restart_may_change_its_settings(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    job.new_process(JobIdentity("this-job", {"model.lr": "1"})).fit()
    assert job.weights == uninterrupted


def test_without_names_the_settings_decide(job, uninterrupted):
    job.new_process(JobIdentity(None, {"model.lr": "1"})).interrupted(after=EPOCH + 1)
    with pytest.raises(CheckpointError, match=r"a job without a name.* differ in model\.lr"):
        job.new_process(JobIdentity(None, {"model.lr": "2"})).fit()
    job.new_process(JobIdentity("this-job", {"model.lr": "1"})).fit()
    assert job.weights == uninterrupted


def test_its_own_go_before_newer_ones_of_another_job(job, uninterrupted):
    job.interrupted(after=2 * EPOCH + 1)
    newer = job.directory / "newer.ckpt"
    job.checkpoints[0].rename(newer)
    job.new_process(OTHER).interrupted(after=EPOCH + 1, resume="never")
    job.fit()
    assert job.steps == 2 * EPOCH
    assert job.weights == uninterrupted


def unsigned(directory):
    for path in directory.glob("*.ckpt"):
        content = torch.load(path)
        del content[JOB_KEY]
        torch.save(content, path)


def test_checkpoints_that_say_nothing_of_their_job(job, uninterrupted):
    job.interrupted(after=EPOCH + 1)
    unsigned(job.directory)
    job.fit()
    assert job.weights == uninterrupted
    assert any("does not name the job that wrote it" in line for line in job.said)
    unsigned(job.directory)
    with pytest.raises(CheckpointError, match=r"had finished, and last.* does not name its job"):
        job.new_process().fit()


def test_a_second_training_of_one_program_does_not_take_the_firsts_checkpoints(job):
    job.fit(epochs=2)
    job.fit(epochs=2)
    assert job.steps == 2 * EPOCH
    assert any("an earlier fit of this process ended there" in line for line in job.said)


def test_a_fast_run_neither_resumes_nor_saves(job):
    job.interrupted(after=EPOCH + 1)
    before = os.listdir(job.directory)
    job.fit(fast_dev_run=True)
    assert job.steps == 1
    assert sorted(os.listdir(job.directory)) == sorted(before)


def test_validation_restores_nothing(job):
    job.interrupted(after=EPOCH + 1)
    own = callback_class(job.namespace, "AutoResume")(str(job.directory), "require")
    trainer = job.pl.Trainer(
        logger=False, enable_progress_bar=False, enable_checkpointing=False, callbacks=[own], accelerator="cpu"
    )
    model = tiny_model(job.pl)
    before = weights(model)
    with log_lines() as said:
        trainer.validate(model, loader(), verbose=False)
    assert weights(model) == before
    assert said == []


def test_a_job_of_the_cli_that_is_started_again(opt_ml, monkeypatch):
    auto_resume._finished_directories.clear()
    monkeypatch.setenv("TRAINING_JOB_NAME", "the-job")
    container = Container(opt_ml, monkeypatch).hyperparameters(**{"trainer.max_epochs": 2, "seed_everything": 1})
    opt_ml.write("checkpointconfig.json", {"LocalPath": str(container.base / "checkpoints")})
    first = container.cli(run=True)
    exported = torch.load(container.model / "model.pt")
    (container.model / "model.pt").unlink()
    auto_resume._finished_directories.clear()
    with log_lines() as said:
        again = container.cli(run=True)
    assert any("This job had finished with last" in line for line in said)
    assert again.trainer.global_step == first.trainer.global_step
    after = torch.load(container.model / "model.pt")
    assert all(torch.equal(after[name], exported[name]) for name in exported)
    # Another job on the same prefix does not hand out this one's model.
    auto_resume._finished_directories.clear()
    (container.model / "model.pt").unlink()
    monkeypatch.setenv("TRAINING_JOB_NAME", "another-job")
    container.hyperparameters(**{"trainer.max_epochs": 2, "seed_everything": 1, "model.lr": 0.5})
    with pytest.raises(
        CheckpointError, match=r"the job the-job, and this is the job another-job; they differ in model\.lr"
    ):
        container.cli(run=True)
    assert "ckpt_path" in container.failure
    assert not (container.model / "model.pt").exists()
    (container.base / "output" / "failure").unlink()
    monkeypatch.setenv("TRAINING_JOB_NAME", "the-job")
    # With another model the reason is what SageMaker shows.
    auto_resume._finished_directories.clear()
    (container.code / "wide_model.py").write_text(
        "import torch\n"
        "from tiny_model import TinyModel\n"
        "class WideModel(TinyModel):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.more = torch.nn.Linear(1, 1)\n"
    )
    with pytest.raises(CheckpointError, match=r"more\.weight"):
        container.hyperparameters(model="wide_model.WideModel").cli(run=True)
    assert container.failure.startswith("CheckpointError: last")
    assert "more.weight" in container.failure
    assert "to train from scratch." in container.failure
