"""``GracefulStop`` in one process; ``tests/processes`` has several ranks."""

import functools
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._failure import report
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import ExportError
from tests.helpers.series import saves_of
from tests.helpers.tiny import loader, tiny_model, weights
from tests.resume.job import EPOCH, NAMESPACE, pl

# What these tests call the hooks that they record.
HOOKS = {
    "on_sanity_check_start": "sanity",
    "on_train_epoch_start": "epoch",
    "on_train_batch_start": "step",
    "on_validation_batch_start": "validation",
    "on_validation_end": "validated",
    "on_train_epoch_end": "epoch end",
    "on_test_batch_start": "test",
    "on_predict_batch_start": "predict",
    "on_train_end": "end",
    "on_fit_end": "fit end",
}
NOTHING_SAVED = "Nothing is saved at this point: a restart continues from the last save, if there is one."


class Kill(pl.Callback):
    """Sends SIGTERM to this process in the given call of a hook, and records the hooks."""

    def __init__(self, hook="none", number=0):
        self.hook, self.number, self.seen, self.went_on = hook, number, [], False
        for method, name in HOOKS.items():
            setattr(self, method, functools.partial(self.reach, name))

    def reach(self, hook, *_, **__):
        self.seen.append(hook)
        if hook == self.hook and self.seen.count(hook) == self.number:
            os.kill(os.getpid(), signal.SIGTERM)
            self.went_on = True

    def state_dict(self):
        return {}  # what it has seen is this process's own


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    left = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert left == before


@pytest.fixture
def trainer(tmp_path):
    def make(*callbacks, saves=True, max_runtime=None, **arguments):
        forget_fits()
        own = [callback_class(NAMESPACE, "GracefulStop")(max_runtime)]
        if saves:
            own.append(callback_class(NAMESPACE, "AutoResume")(str(tmp_path / "saved")))
        arguments = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False, **arguments}
        return pl.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=str(tmp_path), callbacks=[*own, *callbacks], **arguments,
        )  # fmt: skip

    return make


@pytest.fixture
def export(tmp_path):
    return callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))


def saved(tmp_path):
    """The kind and step of each save, oldest first."""
    return [(record["kind"], record["step"]) for record in saves_of(tmp_path / "saved")]


def own(trainer, name):
    """This package's callback; ``AutoResume`` is the first one from ``setup`` on."""
    return next(callback for callback in trainer.callbacks if type(callback).__name__ == name)


def assert_stops(code, run):
    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == code


def fit(trainer, model=None):
    trainer.fit(model or tiny_model(pl), loader(), loader())
    return trainer.lightning_module


@pytest.mark.parametrize(
    ("moment", "point"),
    [
        (("step", 3), ("batch", 3)),
        (("step", EPOCH), ("validation", EPOCH)),
        (("validated", 1), ("epoch", EPOCH)),
        (("epoch end", 1), ("epoch", EPOCH)),
        (("epoch", 2), ("batch", EPOCH + 1)),  # it has been asked for before this callback
        (("step", EPOCH + 1), ("batch", EPOCH + 1)),
    ],
    ids=str,
)
def test_a_stop_saves_at_the_next_point_and_the_job_trains_the_same_weights(
    lines, trainer, tmp_path, export, moment, point
):
    whole = weights(fit(trainer(saves=False)))
    kill, model = Kill(*moment), tiny_model(pl)
    assert_stops(143, lambda: fit(trainer(kill, export), model))
    assert saved(tmp_path) == [point]
    assert f"SIGTERM received: stopping after step {point[1]}, before the program's end." in lines
    assert {"end", "fit end"}.isdisjoint(kill.seen)
    exported = torch.load(tmp_path / "model" / "model.pt")
    assert all(torch.equal(exported[name], value) for name, value in model.state_dict().items())
    assert not ended(tmp_path)
    (line,) = [line for line in lines if line.startswith("Exported ")]
    assert line.endswith(". The program's training had not ended: SIGTERM received")
    assert weights(fit(trainer(export))) == whole
    assert any(line.startswith(f"Resuming fit 0 of this program from step-{point[1]}.ckpt") for line in lines)
    assert ended(tmp_path)


def ended(tmp_path, by="SIGTERM received"):
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    assert content["stopped_by"] == (None if content["ended"] else by)
    return content["ended"]


def test_in_a_validation_nothing_is_saved_and_a_restart_goes_back_to_the_save_before_it(
    lines, trainer, tmp_path, export
):
    kill, model = Kill("validation", 2), tiny_model(pl)
    run = trainer(kill, export)
    own(run, "AutoResume").save_every = 0.01
    assert_stops(143, lambda: fit(run, model))
    assert kill.seen == ["epoch", *["step"] * EPOCH, *["validation"] * 2]
    assert saved(tmp_path) == [("batch", EPOCH - 1), ("validation", EPOCH)]
    assert NOTHING_SAVED in lines
    again = Kill()
    fit(trainer(again))
    assert again.seen[:EPOCH] == ["validation"] * EPOCH
    assert again.seen.count("step") == EPOCH


class StepsItself(type(tiny_model(pl))):
    """Has its optimizers in a way of its own, so that Lightning counts no step."""

    def __init__(self, is_told):
        super().__init__()
        self.is_told, self.automatic_optimization = is_told, False
        self.own = torch.optim.SGD(self.parameters(), lr=0.05)

    def configure_optimizers(self):
        return self.own if self.is_told else None

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False) if self.is_told else self.own
        optimizer.zero_grad()
        self._loss(batch).backward()
        optimizer.step()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_fit_whose_steps_are_not_counted_is_stopped_within_an_epoch(lines, trainer, tmp_path, is_told):
    kill = Kill("step", EPOCH + 3)
    run = trainer(kill)
    own(run, "AutoResume").save_every = 0.01
    assert_stops(143, lambda: fit(run, StepsItself(is_told)))
    assert kill.seen.count("step") == EPOCH + 3
    assert saved(tmp_path) == [("epoch", 0)]
    assert NOTHING_SAVED in lines


@pytest.mark.parametrize("saves", [False, True])
def test_a_fit_in_a_process_of_multiprocessing_is_stopped_without_a_save(lines, trainer, tmp_path, monkeypatch, saves):
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    kill = Kill("step", 3)
    assert_stops(143, lambda: fit(trainer(kill, saves=saves)))
    assert kill.seen.count("step") == 3
    assert NOTHING_SAVED in lines
    assert list(tmp_path.rglob("*.ckpt")) == []


# Between Lightning's own handler and the first batch lie the start of workers, and waiting for slow ranks.
@pytest.mark.parametrize("moment", ["setup", "sanity", "train_dataloader"])
def test_a_signal_before_training_ends_the_program_at_once(trainer, tmp_path, moment):
    kill, model = Kill(moment, 1), tiny_model(pl)
    model.setup = lambda stage: kill.reach("setup")
    model.train_dataloader = lambda: kill.reach("train_dataloader") or loader()
    assert_stops(143, lambda: trainer(kill, num_sanity_val_steps=1).fit(model, val_dataloaders=loader()))
    assert kill.seen[-1] == moment
    assert not kill.went_on
    assert saved(tmp_path) == []


@pytest.mark.parametrize("name", ["test", "validate", "predict"])
def test_a_signal_outside_of_fit_ends_the_program_at_once(trainer, name):
    kill = Kill({"validate": "validation"}.get(name, name), 2)
    model = tiny_model(pl)
    model.forward = model.predict_step = lambda *_: None
    assert_stops(143, lambda: getattr(trainer(kill), name)(model, loader()))
    assert len(kill.seen) == 2


@pytest.mark.parametrize("hook", ["end", "fit end"])
def test_a_signal_after_the_last_step_ends_the_program_after_the_export(lines, trainer, tmp_path, hook):
    kill = Kill(hook, 1)
    run = trainer(kill)
    assert_stops(143, lambda: fit(run))
    assert run.global_step == 2 * EPOCH
    assert saved(tmp_path)[-1] == ("end", 2 * EPOCH)
    assert kill.went_on
    assert kill.seen[-1] == "fit end"
    assert lines[-1].startswith("SIGTERM received after the last step: training is complete")


def test_max_runtime_ends_the_program_with_0(lines, trainer, tmp_path, export):
    run = trainer(export, max_runtime="1h", max_epochs=1000)
    # As if the process had started an hour before, less what four steps take.
    own(run, "GracefulStop")._deadline = SimpleNamespace(is_near=lambda seconds: run.global_step >= 4)
    reason = "sagemaker.max_runtime 1h is nearly reached"
    assert_stops(0, lambda: fit(run))
    assert f"{reason}: stopping after step 4, before the program's end." in lines
    assert saved(tmp_path) == [("batch", 4)]
    assert not ended(tmp_path, by=reason)
    assert own(run, "GracefulStop").stopped_by == reason


def test_an_export_that_fails_is_an_error_and_the_save_stays(trainer, tmp_path, export, monkeypatch):
    def raise_export_error(*_, **__):
        raise ExportError("no room")

    monkeypatch.setattr(export, "export_now", raise_export_error, raising=False)
    with pytest.raises(ExportError, match="no room"):
        fit(trainer(Kill("step", 3), export))
    assert saved(tmp_path) == [("batch", 3)]


def test_an_own_handler_is_still_called(trainer):
    heard = []
    # Lightning 1.7 counts GPUs in a forked process that it ends by SIGTERM, and would wait for one with this handler.
    run = trainer(Kill("step", 3))
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    own = signal.getsignal(signal.SIGTERM)
    assert_stops(143, lambda: fit(run))
    assert heard == [1]
    assert signal.getsignal(signal.SIGTERM) == own
    signal.signal(signal.SIGTERM, before)


def test_what_a_program_caught_before_it_trains_is_no_exit_of_it(trainer, monkeypatch):
    monkeypatch.setattr(report, "_exit_code", (2,))
    fit(trainer(saves=False, max_epochs=1))
    assert report._exit_code is None


def test_with_unequal_validations_the_fit_stops_after_the_validation(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sm.callbacks.graceful_stop.have_equal_batches", lambda *_: False)
    kill = Kill("validation", 2)
    assert_stops(143, lambda: fit(trainer(kill)))
    assert kill.seen[-3:] == ["validation", "validated", "epoch end"]
    assert saved(tmp_path) == [("epoch", EPOCH)]


class Averages(pl.Callback):
    """Swaps the weights in each validation."""

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.kept = [parameter.detach().clone() for parameter in module.parameters()]
            for parameter in module.parameters():
                parameter.data.mul_(1 + 2e-7)  # as little as an average of two equal ones by rounding

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            for parameter, value in zip(module.parameters(), self.kept):
                parameter.data.copy_(value)


def test_in_a_validation_of_swapped_weights_nothing_is_exported(lines, trainer, tmp_path, export):
    best, early = (
        pl.callbacks.ModelCheckpoint(tmp_path / "best", monitor="val_loss"),
        pl.callbacks.EarlyStopping("val_loss"),
    )
    run = trainer(Kill("validation", 2), Averages(), export, best, early, enable_checkpointing=True)
    own(run, "AutoResume").save_every = 0.01
    assert_stops(143, lambda: fit(run))
    assert not (tmp_path / "model" / "model.pt").exists()
    assert any(
        line.startswith("Nothing is exported: this validation has swapped the weights. HINT: ") for line in lines
    )
    assert best.best_model_path == ""
    assert early.best_score.isinf()
    again = weights(fit(trainer(Averages())))
    assert again == weights(fit(trainer(Averages(), saves=False)))


def test_the_time_limit_in_a_validation_of_swapped_weights_is_an_error(trainer, export):
    run = trainer(Averages(), export, max_runtime="1h")
    own(run, "GracefulStop")._deadline = SimpleNamespace(is_near=lambda seconds: run.validating)
    with pytest.raises(ExportError, match=r"Nothing is exported: this validation has swapped.* HINT: Checkpoints are"):
        fit(run)
