import os
import threading
import time
from datetime import timedelta

import pytest
import torch

from lightning_sm._checkpoint.async_io import BackgroundCheckpointIOMixin
from lightning_sm._checkpoint.atomic_io import AtomicCheckpointIOMixin
from lightning_sm._checkpoint.periodic import ThrottledTimeTrigger
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._trainer_defaults import trainer_settings
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.checkpoint.test_atomic_io import Other
from tests.helpers.tiny import loader, tiny_model
from tests.projects.container import log_lines

pytestmark = pytest.mark.usefixtures("one_namespace")

PL = Namespace("pytorch_lightning")
SAFE = callback_class(PL, "SafeSaves")


def a_trainer(directory, *callbacks, epochs=2, **arguments):
    saves = PL.module("callbacks").ModelCheckpoint(dirpath=str(directory), filename="{epoch}")
    return PL.module().Trainer(
        max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=1, default_root_dir=str(directory), callbacks=[*callbacks, saves], **arguments,
    )  # fmt: skip


def fit(trainer):
    trainer.fit(tiny_model(PL.module()), loader(), loader())


@pytest.mark.parametrize("async_save", [False, True])
def test_fit_test_and_fit_again_wrap_once(tmp_path, async_save):
    trainer = a_trainer(tmp_path, SAFE(async_save))
    for epochs in (2, 4):
        trainer.fit_loop.max_epochs = epochs
        fit(trainer)
        trainer.test(ckpt_path=trainer.checkpoint_callback.best_model_path, dataloaders=loader(), verbose=False)
        (path,) = tmp_path.glob("*.ckpt")
        assert path.name == f"epoch={epochs - 1}.ckpt"
        assert torch.load(str(path))["global_step"] == 8 * epochs
    found = strategy_of(trainer).checkpoint_io
    if async_save:
        assert isinstance(found, BackgroundCheckpointIOMixin)
        found = found.inner
    assert isinstance(found, AtomicCheckpointIOMixin)
    assert type(found.inner) is PL.module("plugins").TorchCheckpointIO
    assert not [thread for thread in threading.enumerate() if "lightning-sm" in thread.name]


def test_a_second_trainer_has_its_own(tmp_path):
    callback = SAFE(True)
    for name in ("one", "two"):
        trainer = a_trainer(tmp_path / name, callback, epochs=1)
        fit(trainer)
        assert strategy_of(trainer).checkpoint_io is callback._background
        assert os.listdir(tmp_path / name) == ["epoch=0.ckpt"]


def test_a_projects_own_checkpoint_io_still_writes(tmp_path):
    other = Other()
    trainer = a_trainer(tmp_path, SAFE(), plugins=[other])
    fit(trainer)
    assert [os.path.basename(path)[:8] for path, _ in other.calls] == [".epoch=0", ".epoch=1"]
    assert os.listdir(tmp_path) == ["epoch=1.ckpt"]


def test_within_lightnings_own_asynchronous_one(tmp_path):
    plugins = PL.module("plugins")
    if not hasattr(plugins, "AsyncCheckpointIO"):
        pytest.skip("this Lightning has none")
    trainer = a_trainer(tmp_path, SAFE(True), plugins=[plugins.AsyncCheckpointIO()], epochs=1)
    with log_lines() as lines:
        fit(trainer)
    found = strategy_of(trainer).checkpoint_io
    assert type(found) is plugins.AsyncCheckpointIO
    assert isinstance(found.checkpoint_io, AtomicCheckpointIOMixin)
    assert not isinstance(found.checkpoint_io.inner, AtomicCheckpointIOMixin)
    assert [line for line in lines if "the strategy already uses AsyncCheckpointIO" in line]
    assert os.listdir(tmp_path) == ["epoch=0.ckpt"]


def test_a_strategy_that_saves_by_itself_is_left_alone(tmp_path):
    name = "DDPPlugin" if PL.version < (1, 6) else "SingleDeviceStrategy"
    base = getattr(PL.module("plugins" if PL.version < (1, 6) else "strategies"), name)

    class Own(base):
        """Stands for one of Lightning's, which says so by its module."""

        checkpoint_io = "its own"

        def __init__(self):
            pass

        def save_checkpoint(self, *_):
            raise AssertionError

    Own.__module__ = "pytorch_lightning.strategies.own"
    trainer = a_trainer(tmp_path)
    strategy = Own()
    with pytest.MonkeyPatch.context() as patch, log_lines() as lines:
        patch.setattr("lightning_sm.callbacks.safe_saves.strategy_of", lambda _: strategy)
        SAFE().setup(trainer, None, "fit")
        assert lines == ["Own writes checkpoints itself; SafeSaves does not change it"]
        strategy._state_dict_type = "full"
        Own.checkpoint_io = None
        SAFE().setup(trainer, None, "fit")
    assert isinstance(strategy.checkpoint_io, AtomicCheckpointIOMixin)
    assert len(lines) == 1


@pytest.mark.parametrize("async_save", [False, True])
def test_a_disk_that_is_full_at_the_end_is_an_error(tmp_path, async_save):
    def full(checkpoint, path):
        time.sleep(0.1)
        raise OSError(28, "No space left on device")

    trainer = a_trainer(tmp_path, SAFE(async_save), plugins=[Other(full)], epochs=1)
    with pytest.raises(CheckpointError, match=r"No space left on device.* HINT: "):
        fit(trainer)
    assert os.listdir(tmp_path) == []


def test_an_exception_in_training_waits_for_what_is_being_saved(tmp_path):
    class Fails(PL.module("callbacks").Callback):
        def on_train_epoch_start(self, trainer, *_):
            if trainer.current_epoch == 1:
                raise ValueError("the reason")

    def slow(checkpoint, path):
        time.sleep(0.3)
        torch.save(checkpoint, path)

    with pytest.raises(ValueError, match="the reason"):
        fit(a_trainer(tmp_path, SAFE(True), Fails(), plugins=[Other(slow)]))
    assert os.listdir(tmp_path) == ["epoch=0.ckpt"]

    def full(checkpoint, path):
        raise OSError(28, "No space left on device")

    with log_lines() as lines, pytest.raises(ValueError, match="the reason"):
        fit(a_trainer(tmp_path / "full", SAFE(True), Fails(), plugins=[Other(full)]))
    assert "No space left on device" in lines[-1]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    class Steps(PL.module("callbacks").Callback):
        taken = 0

        def on_train_batch_end(self, *_):
            self.taken += 1

    steps, at_write = Steps(), []

    def slow(checkpoint, path):
        while steps.taken < 12 and not at_write:
            time.sleep(0.01)  # ends only if the second epoch is trained meanwhile
        at_write.append(steps.taken)
        torch.save(checkpoint, path)

    fit(a_trainer(tmp_path, SAFE(True), steps, plugins=[Other(slow)]))
    assert at_write[0] >= 12
    (path,) = tmp_path.glob("*.ckpt")
    assert torch.load(str(path))["global_step"] == 16


def test_two_callbacks_do_not_take_one_name_while_it_is_being_written(tmp_path):
    def slow(checkpoint, path):
        time.sleep(0.2)
        torch.save(checkpoint, path)

    best = PL.module("callbacks").ModelCheckpoint(dirpath=str(tmp_path), filename="{epoch}", monitor="train_loss")
    for _ in range(2):
        trainer = a_trainer(tmp_path, SAFE(True), best, plugins=[Other(slow)], epochs=1)
        fit(trainer)
        mine, other = (callback.best_model_path for callback in trainer.checkpoint_callbacks)
        assert mine != other
        assert os.path.isfile(mine)
        assert os.path.isfile(other)


@pytest.mark.parametrize("async_save", [False, True])
def test_a_job_saves_whole_and_equal_checkpoints(container, async_save):
    best = {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val_loss", "filename": "best", "mode": "max"}}
    values = {"sagemaker.async_save": async_save, "sagemaker.save_every": "0.000001s", "trainer.max_epochs": 3}
    cli = container.hyperparameters({**values, "trainer.callbacks": [best]}).cli(run=True)
    directory = container.base / "output" / "data" / "checkpoints"
    assert not list(directory.glob(".*"))
    last = torch.load(str(next(directory.glob("last*.ckpt"))))
    for name, value in cli.model.state_dict().items():
        assert torch.equal(last["state_dict"][name], value)
    exported = torch.load(str(container.model / "model.pt"))
    chosen = torch.load(str(directory / "best.ckpt"))["state_dict"]
    assert all(torch.equal(exported[name], chosen[name]) for name in chosen)
    assert container.summary["monitor"] == "val_loss"


def test_a_script_gets_it_too(container):
    settings = trainer_settings(sagemaker={"async_save": True, "export": False}, max_epochs=1, logger=False)
    (callback,) = (found for found in settings["callbacks"] if isinstance(found, SAFE))
    assert callback.async_save  # type: ignore[attr-defined]
    fit(PL.module().Trainer(enable_progress_bar=False, **settings))
    assert list((container.base / "output" / "data" / "checkpoints").glob("last*.ckpt"))


@pytest.mark.parametrize("kind", ["steps", "time"])
def test_what_the_model_does_at_the_end_of_a_batch_is_in_each_checkpoint(tmp_path, kind):
    if kind == "steps":
        saves = PL.module("callbacks").ModelCheckpoint(str(tmp_path), "{step}", every_n_train_steps=1, save_top_k=-1)
    else:
        saves = PL.module("callbacks").ModelCheckpoint(
            str(tmp_path), "{step}", train_time_interval=timedelta(microseconds=1), save_top_k=-1
        )
        saves.on_train_batch_end = ThrottledTimeTrigger(saves)
    before = vars(saves).get("on_train_batch_end")
    model = tiny_model(PL.module())
    model.register_buffer("batches", torch.zeros(()))
    model.on_train_batch_end = lambda *_: model.batches.add_(1)
    trainer = PL.module().Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=1, callbacks=[SAFE(), saves],
    )  # fmt: skip
    trainer.fit(model, loader())
    contents = [torch.load(str(path)) for path in tmp_path.glob("*.ckpt")]
    assert sorted(content["state_dict"]["batches"].item() for content in contents) == list(range(1, 9))
    assert vars(saves).get("on_train_batch_end") is before
