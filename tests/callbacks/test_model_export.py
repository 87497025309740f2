import json
import math
import os
from types import SimpleNamespace

import pytest
import torch

from lightning_sm import _export
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import model_export_class
from lightning_sm.errors import ExportError, OutputError
from tests.helpers.processes import local_rendezvous
from tests.projects.container import Container

PL = Namespace("pytorch_lightning")


@pytest.fixture
def container(opt_ml, monkeypatch):
    return Container(opt_ml, monkeypatch)


def fit(container, *words, **hyperparameters):
    return container.hyperparameters(hyperparameters).cli(*words, run=True)


def exported(container):
    return _export.load_file(str(container.model / "model.pt"), weights_only=True)


def assert_equal(first, second):
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


BEST = {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val_loss", "mode": "max", "filename": "best"}}


def test_the_best_model_where_a_metric_is_monitored(container):
    cli = fit(container, **{"trainer.callbacks": [BEST], "trainer.max_epochs": 3})
    checkpoint = container.base / "output" / "data" / "checkpoints" / "best.ckpt"
    saved = _export.load_file(str(checkpoint), weights_only=False)
    assert saved["global_step"] * 3 == cli.trainer.global_step == 6  # the loss falls, and the mode is max
    assert_equal(exported(container), saved["state_dict"])
    assert not torch.equal(exported(container)["layer.weight"], cli.model.layer.weight)
    summary = container.summary
    assert summary["checkpoint"] == str(checkpoint)
    assert summary["monitor"] == "val_loss"
    assert summary["score"] == pytest.approx(float(cli.trainer.checkpoint_callback.best_model_score))


def test_the_last_model_where_nothing_is_monitored(container):
    cli = fit(container, **{"trainer.max_epochs": 2})
    assert_equal(exported(container), cli.model.state_dict())
    summary = container.summary
    assert summary["class_path"] == "tiny_model.TinyModel"
    assert (summary["checkpoint"], summary["score"], summary["monitor"]) == (None, None, None)
    assert (summary["epoch"], summary["global_step"]) == (2, 4)
    assert set(summary["metrics"]) == {"loss", "val_loss"}
    assert summary["versions"] == {
        "lightning_sm": __import__("lightning_sm").__version__,
        "pytorch_lightning": PL.module().__version__,
        "torch": str(torch.__version__),
    }
    assert sorted(os.listdir(container.model)) == ["config.yaml", "model.json", "model.pt"]
    assert "class_path: tiny_model.TinyModel" in (container.model / "config.yaml").read_text()


def test_the_export_can_be_turned_off(container):
    fit(container, **{"sagemaker.export": False})
    assert not container.model.exists()


def test_a_fast_run_exports_too(container):
    cli = fit(container, "--trainer.fast_dev_run=true")
    assert_equal(exported(container), cli.model.state_dict())
    assert container.summary["checkpoint"] is None


def test_a_diverged_training_exports_a_readable_summary(container):
    fit(container, **{"model.lr": math.inf})
    assert container.summary["metrics"]["val_loss"] is None


def test_the_place_of_an_older_model_is_taken(container):
    fit(container)
    first = exported(container)
    fit(container, **{"trainer.max_epochs": 3})
    assert not torch.equal(exported(container)["layer.weight"], first["layer.weight"])


def test_a_crash_in_the_middle_leaves_the_old_model(container, monkeypatch):
    fit(container)
    before = exported(container)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning_sm._export._directory._flush", full)  # loggers call os.fsync, too
    with pytest.raises(ExportError, match="No space left"):
        fit(container, **{"trainer.max_epochs": 3})
    assert_equal(exported(container), before)
    assert sorted(os.listdir(container.model)) == ["config.yaml", "model.json", "model.pt"]
    assert container.failure.startswith("ExportError: The model could not be written")


def test_a_state_dict_with_more_than_tensors(container):
    (container.code / "odd_model.py").write_text(
        "from tiny_model import TinyModel\n"
        "class OddModel(TinyModel):\n"
        "    def get_extra_state(self): return Extra()\n"
        "    def set_extra_state(self, state): pass\n"
        "class Extra: pass\n"
    )
    with pytest.raises(ExportError, match="HINT: Its state_dict"):
        fit(container, model="odd_model.OddModel")
    assert os.listdir(container.model) == []


def a_trainer(container, callback, **arguments):
    return PL.module().Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=str(container.base / "root"), callbacks=[callback], **arguments,
    )  # fmt: skip


def tiny():
    from tiny_data import TinyData
    from tiny_model import TinyModel

    return TinyModel(), TinyData("x")


def test_outside_a_container_only_into_a_named_directory(container, tmp_path):
    container.leave()
    model, data = tiny()
    a_trainer(container, model_export_class(PL)()).fit(model, data)
    assert not container.model.exists()
    a_trainer(container, model_export_class(PL)(str(tmp_path / "there"))).fit(model, data)
    assert sorted(os.listdir(tmp_path / "there")) == ["model.json", "model.pt"]


def test_fit_test_and_fit_again(container):
    callback = model_export_class(PL)()
    trainer = a_trainer(container, callback)
    model, data = tiny()
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    written = os.stat(container.model / "model.pt").st_mtime_ns
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    assert os.stat(container.model / "model.pt").st_mtime_ns > written
    assert json.loads((container.model / "model.json").read_text())["epoch"] == 2
    assert_equal(exported(container), model.state_dict())


def test_a_model_directory_that_cannot_be_written_stops_before_training(container):
    (container.base / "model").write_text("a file")
    model, data = tiny()
    with pytest.raises(OutputError, match="The model directory"):
        a_trainer(container, model_export_class(PL)()).fit(model, data)
    assert "OutputError: The model directory" in container.failure
    trainer = a_trainer(container, model_export_class(PL)())
    trainer.validate(model, data, verbose=False)


def test_other_ranks_help_to_gather_and_write_nothing(container):
    gathered = []
    strategy = SimpleNamespace(lightning_module_state_dict=lambda: gathered.append(1) or {})
    trainer = SimpleNamespace(is_global_zero=False, strategy=strategy)
    callback = model_export_class(PL)()
    callback.setup(trainer, None, "fit")
    callback.on_train_end(trainer, None)
    callback.on_fit_end(trainer, None)
    assert gathered == [1]
    assert not container.model.exists()


@pytest.mark.processes
def test_two_processes_write_one_model(container):
    ran = container.run("-m", "torch.distributed.run", *local_rendezvous(), "--nproc_per_node=2", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("Exported the last model") == 1
    assert ran.stderr.count("SageMaker settings:") == 1
    assert sorted(os.listdir(container.model)) == ["config.yaml", "model.json", "model.pt"]
    assert container.summary["global_step"] == 1


def test_a_callback_that_is_there_is_not_doubled(container):
    cli = container.cli(trainer_defaults={"callbacks": [model_export_class(PL)(config="own")]})
    exports = [callback for callback in cli.trainer.callbacks if isinstance(callback, model_export_class(PL))]
    assert [callback.config for callback in exports] == ["own"]
