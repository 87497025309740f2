import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._checkpoint.candidates import REPLACED_WEIGHTS_KEY, list_candidates
from lightning_sm._export import load_file
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import ExportError, JobConfigError
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()
BATCHES = 8  # of an epoch


class Kill(PL.Callback):
    """Sends SIGTERM to this process in the given call of a hook, and records the hooks."""

    def __init__(self, hook, number):
        self.hook, self.number, self.seen = hook, number, []

    def _at(self, hook):
        self.seen.append(hook)
        if hook == self.hook and self.seen.count(hook) == self.number:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_sanity_check_start(self, *_):
        self._at("sanity")

    def on_train_batch_start(self, *_, **__):
        self._at("step")

    def on_validation_batch_start(self, *_, **__):
        self._at("validation")

    def on_validation_end(self, *_):
        self._at("validated")

    def on_test_batch_start(self, *_, **__):
        self._at("test")

    def on_predict_batch_start(self, *_, **__):
        self._at("predict")

    def on_train_end(self, *_):
        self._at("end")

    def on_fit_end(self, *_):
        self._at("fit end")
        self.seen.append("exported")


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    left = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert left == before


@pytest.fixture
def trainer(tmp_path):
    def make(*callbacks, directory=True, **arguments):
        stop = callback_class(NAMESPACE, "GracefulStop")(str(tmp_path / "saved") if directory else None)
        arguments = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False, **arguments}
        return PL.Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=str(tmp_path),
            callbacks=[stop, *callbacks],
            **arguments,
        )

    return make


def saved(tmp_path):
    return sorted(path.name for path in tmp_path.rglob("*.ckpt"))


def assert_stops(code, run):
    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == code


def fit(trainer, model=None, **more):
    trainer.fit(model or tiny_model(PL), loader(), loader(), **more)


def test_a_signal_within_an_epoch(trainer, tmp_path):
    kill = Kill("step", 3)
    model = tiny_model(PL)
    with log_lines() as lines:
        assert_stops(143, lambda: fit(trainer(kill), model))
    assert kill.seen == ["step"] * 3
    content = load_file(str(tmp_path / "saved" / "stopped-step=3.ckpt"), weights_only=False)
    assert content["global_step"] == 3
    assert all((content["state_dict"][name] == value).all() for name, value in model.state_dict().items())
    assert content["optimizer_states"][0]["state"]
    assert lines[0] == "SIGTERM received: stopping after step 3."
    assert lines[1].startswith(f"Saved {tmp_path / 'saved'}")


def test_a_fit_resumes_from_the_stopped_checkpoint(trainer, tmp_path):
    assert_stops(143, lambda: fit(trainer(Kill("step", 3))))
    again = Kill("none", 0)
    then = trainer(again, max_steps=5)
    fit(then, ckpt_path=str(tmp_path / "saved" / "stopped-step=3.ckpt"))
    assert then.global_step == 5
    assert "end" in again.seen


@pytest.mark.skipif(NAMESPACE.version < (1, 6), reason="Lightning 1.5 goes on with the next epoch")
def test_a_restarted_job_resumes_and_trains_the_same_weights(trainer, tmp_path):
    def restartable(*callbacks):
        resume = callback_class(NAMESPACE, "AutoResume")(str(tmp_path / "saved"))
        return trainer(*callbacks, resume, callback_class(NAMESPACE, "DataPosition")())

    whole, again = tiny_model(PL), tiny_model(PL)
    fit(trainer(), whole)
    assert_stops(143, lambda: fit(restartable(Kill("step", 3))))
    with log_lines() as lines:
        fit(restartable(), again)
    # torch 1.13 cannot load it with weights_only, of which a warning comes first.
    assert [line for line in lines if line.startswith("Resuming from stopped-step=3.ckpt (epoch 0, step 3)")]
    assert weights(again) == weights(whole)


def test_accumulated_gradients_are_applied_before_the_stop(trainer, tmp_path):
    kill = Kill("step", 2)
    assert_stops(143, lambda: fit(trainer(kill, accumulate_grad_batches=3)))
    assert kill.seen == ["step"] * 3
    assert saved(tmp_path) == ["stopped-step=1.ckpt"]


def test_a_signal_within_a_validation(trainer, tmp_path):
    kill = Kill("validation", 2)
    assert_stops(143, lambda: fit(trainer(kill)))
    assert kill.seen == ["step"] * BATCHES + ["validation"] * 2
    assert saved(tmp_path) == [f"stopped-step={BATCHES}.ckpt"]


def test_a_signal_before_training_ends_the_program_at_once(trainer, tmp_path):
    kill = Kill("sanity", 1)
    assert_stops(143, lambda: fit(trainer(kill, num_sanity_val_steps=1)))
    assert kill.seen == ["sanity"]
    assert saved(tmp_path) == []


@pytest.mark.parametrize("name", ["test", "validate", "predict"])
def test_a_signal_outside_of_fit_ends_the_program_at_once(trainer, tmp_path, name):
    kill = Kill({"validate": "validation"}.get(name, name), 2)
    model = tiny_model(PL)
    model.forward = model.predict_step = lambda *_: None
    assert_stops(143, lambda: getattr(trainer(kill), name)(model, loader()))
    assert len(kill.seen) == 2
    assert saved(tmp_path) == []


def test_a_signal_after_the_last_step_of_a_complete_training(trainer, tmp_path):
    kill = Kill("end", 1)
    then = trainer(kill)
    assert_stops(143, lambda: fit(then))
    assert then.global_step == 2 * BATCHES
    assert saved(tmp_path) == []


def test_a_signal_during_the_export_ends_the_program_after_it(trainer, tmp_path):
    kill = Kill("fit end", 1)
    then = trainer(kill)
    with log_lines() as lines:
        assert_stops(143, lambda: fit(then))
    assert kill.seen[-2:] == ["fit end", "exported"]
    assert lines[-1].startswith("SIGTERM received after the last step: training is complete")


def test_a_training_that_is_not_stopped(trainer, tmp_path):
    kill = Kill("none", 0)
    fit(trainer(kill))
    assert kill.seen[-3:] == ["end", "fit end", "exported"]
    assert saved(tmp_path) == []


def test_max_runtime_ends_the_program_with_0(trainer, tmp_path):
    then = trainer(Kill("none", 0), max_epochs=1000)
    stop = callback_class(NAMESPACE, "GracefulStop")(str(tmp_path / "saved"), "1h")
    # As if the process had started an hour before, less what a step takes.
    stop._deadline = SimpleNamespace(is_near=lambda seconds: then.global_step >= 4)
    then.callbacks[0] = stop
    with log_lines() as lines:
        assert_stops(0, lambda: fit(then))
    assert lines[0].startswith("sagemaker.max_runtime 1h is nearly reached: stopping after step ")
    assert len(saved(tmp_path)) == 1


def test_max_runtime_that_is_not_a_duration():
    with pytest.raises(JobConfigError, match=r"sagemaker.max_runtime is 'soon'.*HINT: Write a number of seconds"):
        callback_class(NAMESPACE, "GracefulStop")(max_runtime="soon")


def test_saves_are_timed(trainer, tmp_path, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr("lightning_sm.callbacks.graceful_stop.time", SimpleNamespace(monotonic=lambda: next(clock)))
    checkpoint = PL.callbacks.ModelCheckpoint(dirpath=str(tmp_path / "own"))
    then = trainer(checkpoint, enable_checkpointing=True)
    fit(then)
    assert then.callbacks[0]._save_seconds == 1


def test_without_a_directory_nothing_is_saved(trainer, tmp_path):
    assert_stops(143, lambda: fit(trainer(Kill("step", 3), directory=False)))
    assert saved(tmp_path) == []


def test_the_directory_of_the_model_checkpoint_is_the_default(trainer, tmp_path):
    checkpoint = PL.callbacks.ModelCheckpoint(dirpath=str(tmp_path / "own"))
    assert_stops(143, lambda: fit(trainer(Kill("step", 3), checkpoint, directory=False, enable_checkpointing=True)))
    assert os.path.isfile(tmp_path / "own" / "stopped-step=3.ckpt")


def test_older_stopped_checkpoints_are_removed(trainer, tmp_path):
    (tmp_path / "saved").mkdir()
    for name in ("stopped-step=2.ckpt", "stopped-step=30.ckpt", "last.ckpt", "stopped-step=x.ckpt"):
        (tmp_path / "saved" / name).write_text("")
    assert_stops(143, lambda: fit(trainer(Kill("step", 3))))
    names = ["last.ckpt", "stopped-step=3.ckpt", "stopped-step=30.ckpt", "stopped-step=x.ckpt"]
    assert sorted(os.listdir(tmp_path / "saved")) == names


def test_the_model_is_exported(trainer, tmp_path):
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    assert_stops(143, lambda: fit(trainer(Kill("step", 3), export)))
    assert (tmp_path / "model" / "model.pt").is_file()


def test_an_export_that_fails_is_an_error_and_the_checkpoint_stays(trainer, tmp_path, monkeypatch):
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    monkeypatch.setattr(export, "export_now", raise_export_error, raising=False)
    with pytest.raises(ExportError, match="no room"):
        fit(trainer(Kill("step", 3), export))
    assert saved(tmp_path) == ["stopped-step=3.ckpt"]


def raise_export_error(*_):
    raise ExportError("no room")


def test_an_own_handler_is_still_called(trainer, tmp_path):
    heard = []
    # Lightning 1.7 counts GPUs in a forked process that it ends by SIGTERM, and would wait for one with this handler.
    own_trainer = trainer(Kill("step", 3))
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    own = signal.getsignal(signal.SIGTERM)
    assert_stops(143, lambda: fit(own_trainer))
    assert heard == [1]
    assert signal.getsignal(signal.SIGTERM) == own
    signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_no_handler_is_installed(trainer, tmp_path):
    handlers = []

    class Look(PL.Callback):
        def on_train_batch_start(self, *_, **__):
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: fit(trainer(Look(), max_epochs=1)))
    thread.start()
    thread.join()
    assert set(handlers) == {before}


def test_with_unequal_validations_the_fit_stops_after_the_validation(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sm.callbacks.step_stop.have_equal_batches", lambda *_: False)
    kill = Kill("validation", 2)
    assert_stops(143, lambda: fit(trainer(kill)))
    assert kill.seen == ["step"] * BATCHES + ["validation"] * BATCHES + ["validated"] + ["step"]
    assert saved(tmp_path) == [f"stopped-step={BATCHES + 1}.ckpt"]


class Averages(PL.Callback):
    """Swaps the weights between two hooks of a validation."""

    def __init__(self, start, end, comes_back=True):
        self.start, self.end, self.comes_back = start, end, comes_back
        self.kept, self.seen = None, []

    def _swap(self, module, values):
        kept = [parameter.detach().clone() for parameter in module.parameters()]
        for parameter, value in zip(module.parameters(), values):
            parameter.data.copy_(value)
        return kept

    def _at(self, hook, module):
        if module.trainer.sanity_checking:
            return
        if hook == self.start:
            self.kept = self._swap(module, [torch.ones_like(parameter) for parameter in module.parameters()])
        if hook == self.end:
            self.seen.append(hook)
            if self.comes_back:
                self._swap(module, self.kept)

    def on_validation_start(self, trainer, module):
        self._at("start", module)

    def on_validation_epoch_start(self, trainer, module):
        self._at("epoch start", module)

    def on_validation_epoch_end(self, trainer, module):
        self._at("epoch end", module)

    def on_validation_end(self, trainer, module):
        self._at("end", module)


SWAPS = [("start", "end"), ("epoch start", "epoch end"), ("start", "epoch end"), ("epoch start", "end")]


def stopped_content(tmp_path):
    (path,) = tmp_path.rglob("stopped-step=*.ckpt")
    return load_file(str(path), weights_only=False)


@pytest.mark.parametrize("swap", SWAPS)
def test_a_stop_in_a_validation_of_swapped_weights_saves_the_trained_ones(trainer, tmp_path, swap):
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    trained, stopped = tiny_model(PL), tiny_model(PL)
    fit(trainer(max_steps=BATCHES), trained)
    averages, best = Averages(*swap), PL.callbacks.ModelCheckpoint(tmp_path / "best", monitor="val_loss")
    stop = PL.callbacks.EarlyStopping("val_loss")
    kill = Kill("validation", 2)
    run = trainer(kill, averages, export, best, stop, enable_checkpointing=True, val_check_interval=1.0)
    assert_stops(143, lambda: fit(run, stopped))
    assert averages.seen == [swap[1]]
    assert "validated" not in kill.seen
    assert best.best_model_path == ""
    assert stop.best_score.isinf()
    content = stopped_content(tmp_path)
    assert REPLACED_WEIGHTS_KEY not in content
    exported = load_file(str(tmp_path / "model" / "model.pt"), weights_only=True)
    for name, value in trained.named_parameters():
        assert torch.equal(content["state_dict"][name], value)
        assert torch.equal(exported[name], value)


def test_a_model_that_swaps_its_own_weights(trainer, tmp_path):
    trained, stopped = tiny_model(PL), tiny_model(PL)
    fit(trainer(max_steps=BATCHES), trained)
    averages = Averages("start", "end")
    stopped.on_validation_epoch_start = lambda: averages._at("start", stopped)
    stopped.on_validation_end = lambda: averages._at("end", stopped)
    assert_stops(143, lambda: fit(trainer(Kill("validation", 2)), stopped))
    content = stopped_content(tmp_path)
    assert all(torch.equal(content["state_dict"][name], value) for name, value in trained.named_parameters())


def test_weights_that_are_restored_with_rounding_errors(trainer, tmp_path):
    averages = Averages("start", "end")
    swap = averages._swap
    averages._swap = lambda module, values: swap(module, [value * (1 + 2e-7) for value in values])
    assert_stops(143, lambda: fit(trainer(Kill("validation", 2), averages)))
    assert stopped_content(tmp_path)["state_dict"]["layers.0.weight"].std() > 0.1


@pytest.mark.skipif(not hasattr(PL.callbacks, "WeightAveraging"), reason="Lightning has WeightAveraging since 2.6")
def test_a_stop_with_lightnings_weight_averaging_resumes_to_the_same_weights(trainer, tmp_path):
    def run(*more, **arguments):
        averaging = PL.callbacks.EMAWeightAveraging(decay=0.9)
        position, resume = (
            callback_class(NAMESPACE, "DataPosition")(),
            callback_class(NAMESPACE, "AutoResume")(str(tmp_path / "saved")),
        )
        return trainer(averaging, position, *([resume] if arguments.pop("resume", True) else []), *more, **arguments)

    whole, again = tiny_model(PL), tiny_model(PL)
    fit(run(resume=False), whole)
    assert_stops(143, lambda: fit(run(Kill("validation", 2)), tiny_model(PL)))
    assert stopped_content(tmp_path)["global_step"] == BATCHES
    with log_lines() as lines:
        fit(run(), again)
    assert lines[0].startswith("Resuming from stopped-step=8.ckpt")
    assert weights(again) == weights(whole)


def test_swapped_weights_that_are_not_restored_are_not_saved(trainer, tmp_path):
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    averages = Averages("start", "end", comes_back=False)
    with log_lines() as lines:
        assert_stops(143, lambda: fit(trainer(Kill("validation", 2), averages, export)))
    assert saved(tmp_path) == []
    assert not (tmp_path / "model" / "model.pt").exists()
    assert "Nothing is saved or exported" in lines[-1]


def test_reaching_the_time_limit_with_swapped_weights_is_an_error(trainer, tmp_path):
    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path / "model"))
    run = trainer(Averages("start", "end", comes_back=False), export)
    stop = callback_class(NAMESPACE, "GracefulStop")(str(tmp_path / "saved"), "1h")
    stop._deadline = SimpleNamespace(is_near=lambda seconds: run.validating)
    run.callbacks[0] = stop
    with pytest.raises(ExportError, match=r"Nothing is saved or exported.*HINT: Restore the trained weights"):
        fit(run)
    assert saved(tmp_path) == []


def test_a_hook_that_fails_on_a_partial_validation_is_ignored(trainer, tmp_path):
    class Fails(PL.Callback):
        def on_validation_start(self, *_):
            pass

        def on_validation_epoch_end(self, *_):
            raise ValueError("two batches are too few")

    with log_lines() as lines:
        assert_stops(143, lambda: fit(trainer(Kill("validation", 2), Fails(), Averages("start", "end"))))
    assert any("Fails.on_validation_epoch_end failed in a validation that was stopped early" in line for line in lines)
    assert not _is_ones(stopped_content(tmp_path))


def _is_ones(content):
    return bool((content["state_dict"]["layers.0.weight"] == 1).all())


def test_checkpoints_of_swapped_weights_are_marked_and_not_resumed_from(trainer, tmp_path):
    class Saves(PL.Callback):
        def on_validation_batch_end(self, run, *_, **__):
            run.save_checkpoint(tmp_path / "saved" / "within.ckpt")

        def on_train_epoch_end(self, run, *_, **__):
            run.save_checkpoint(tmp_path / "saved" / "after.ckpt")

    with log_lines() as lines:
        fit(trainer(Averages("start", "end"), Saves(), max_epochs=1))
    assert len([line for line in lines if "Jobs do not resume from it" in line]) == 1
    after, within = list_candidates(str(tmp_path / "saved"))
    assert (after.name, after.problem) == ("after.ckpt", None)
    assert within.problem == "it was saved while a validation had replaced the weights of the model"


def averaging_model():
    """Keeps a moving average of a weight by its own hook at the end of a batch."""
    model = tiny_model(PL)
    model.register_buffer("average", torch.zeros(8, 4))
    model.on_train_batch_end = lambda *_: model.average.mul_(0.9).add_(model.layers[0].weight.detach(), alpha=0.1)
    return model


def test_the_checkpoint_is_saved_after_the_models_batch_end_hook(trainer, tmp_path):
    whole, stopped = averaging_model(), averaging_model()
    fit(trainer(max_steps=3), whole)
    assert_stops(143, lambda: fit(trainer(Kill("step", 3)), stopped))
    assert torch.equal(stopped_content(tmp_path)["state_dict"]["average"], whole.average)
