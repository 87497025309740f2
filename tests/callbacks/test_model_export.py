import math
import os
import random

import numpy
import pytest
import torch

from lightning_sm import _export
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import ExportError
from tests.export.formats import needs
from tests.helpers.checkpoint_files import Extra
from tests.projects.container import log_lines
from tests.projects.nets import Dictionaries, Headless, Net, loader

PL = Namespace("pytorch_lightning")


def fit(container, *words, **hyperparameters):
    return container.hyperparameters(hyperparameters).cli(*words, run=True)


def exported(container):
    return _export.load_file(str(container.model / "model.pt"), weights_only=True)


def assert_equal(first, second):
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_last_weights_without_a_monitored_metric(container):
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
    assert sorted(os.listdir(container.model)) == ["config.resolved.yaml", "config.yaml", "model.json", "model.pt"]
    assert "class_path: tiny_model.TinyModel" in (container.model / "config.yaml").read_text()


def test_exported_config_runs_outside_a_container(container):
    import yaml

    container.config("trainer:\n  logger:\n    class_path: CSVLogger\n    init_args: {save_dir: logs, name: '07'}\n")
    checkpoint = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "mine", "monitor": "val_loss"}}
    hyperparameters = {"trainer.callbacks": [checkpoint], "data.batch_size": 2, "trainer.max_epochs": 1}
    container.opt_ml.host("algo-1")
    fit(container, **hyperparameters)
    text = (container.model / "config.yaml").read_text()
    exported = yaml.safe_load(text)
    assert str(container.base) not in text
    assert not {"num_nodes", "accelerator", "default_root_dir"} & set(exported["trainer"])
    assert exported["data"]["init_args"]["batch_size"] == 2
    assert {"save_dir": "logs", "name": "07"}.items() <= exported["trainer"]["logger"]["init_args"].items()
    assert exported["trainer"]["callbacks"][0]["init_args"]["monitor"] == "val_loss"
    resolved = yaml.safe_load((container.model / "config.resolved.yaml").read_text())
    assert resolved["data"]["init_args"]["data_dir"] == str(container.channel("training"))
    assert resolved["trainer"]["default_root_dir"].startswith(str(container.base))
    container.leave()
    config = container.code / "exported.yaml"
    config.write_text(text)
    data_dir = ["--data.data_dir=here"] if "data_dir" not in exported["data"]["init_args"] else []
    cli = container.cli("fit", "--config", str(config), *data_dir, run=True)
    assert cli.trainer.global_step == 4


def test_the_example_of_a_fit_without_steps_leaves_random_numbers_as_they_are(tmp_path):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return [torch.full((4,), random.random() + numpy.random.rand())]

    def drawn():
        return random.random(), numpy.random.rand()

    export = callback_class(PL, "ModelExport")(str(tmp_path), export="torchscript")
    trainer = PL.module().Trainer(max_epochs=0, callbacks=[export], logger=False, enable_checkpointing=False)
    PL.module().seed_everything(1)
    expected = drawn()
    PL.module().seed_everything(1)
    trainer.fit(Net(), torch.utils.data.DataLoader(Noisy(), 4))
    assert export.exported
    assert drawn() == expected


def test_a_diverged_training_exports_a_readable_summary(container):
    fit(container, **{"model.lr": math.inf})
    assert container.summary["metrics"]["val_loss"] is None


def test_what_is_no_number_among_the_metrics_is_left_out(container):
    class Own(Net):
        def on_train_epoch_end(self):
            own = {"matrix": torch.eye(2), "none": None, "text": "best", "number": torch.tensor(2)}
            self.trainer.callback_metrics.update(own)

    fit_net(container, Own(), {"train_dataloaders": loader()})
    assert set(container.summary["metrics"]) == {"loss", "number"}


def a_trainer(container, callback, more=(), **arguments):
    return PL.module().Trainer(
        logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=str(container.base / "root"), callbacks=[callback, *more], **{"max_epochs": 1, **arguments},
    )  # fmt: skip


def test_outside_a_container_only_with_a_model_dir(container, tmp_path):
    container.leave()
    model, data = nets("state_dict")
    fit_net(container, model, data)
    assert not container.model.exists()
    fit_net(container, model, data, model_dir=str(tmp_path / "there"))
    assert sorted(os.listdir(tmp_path / "there")) == ["model.json", "model.pt"]


WEIGHTS_ONLY = ["state_dict", "checkpoint", "safetensors"]
GRAPHS = ["torchscript", "onnx", "exported_program"]


def nets(name):
    needs(name)
    return Net(), {"train_dataloaders": loader(), "val_dataloaders": loader()}


def fit_net(container, model, data, *callbacks, **options):
    trainer = a_trainer(container, callback_class(PL, "ModelExport")(**options), more=callbacks)
    trainer.fit(model, **data)
    return trainer


@pytest.mark.parametrize("name", [*WEIGHTS_ONLY, *GRAPHS])
def test_export_does_not_change_training(container, name):
    needs(name)
    trained = []
    for options in ({"export": False}, {"export": name}):
        torch.manual_seed(5)
        model = Net()
        torch.manual_seed(6)
        data = {"train_dataloaders": loader(), "val_dataloaders": loader()}
        trainer = fit_net(container, model, data, **options)  # without which Lightning 1.x cannot ask for a state dict
        trained.append((model, torch.rand(1), trainer))
    (without, drawn, _), (with_export, drawn_too, _) = trained
    assert_equal(without.state_dict(), with_export.state_dict())
    assert torch.equal(drawn, drawn_too)
    assert with_export.training == without.training
    assert all(parameter.requires_grad for parameter in with_export.parameters())
    assert container.summary["format"] == name
    assert container.summary["comparison"]["compared"] == ("tensors" if name in WEIGHTS_ONLY else "output")


class FirstIsBest(PL.module().Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        # Lightning 1.5 knows epoch and step only where they are logged.
        newest = {"epoch": float(trainer.current_epoch), "global_step": float(trainer.global_step)}
        pl_module.log_dict({"falling": -float(trainer.current_epoch), **newest})


def keeps(container, monitor):
    """A callback that keeps the checkpoints with the highest values, in a folder of this name."""
    folder = str(container.base / monitor)
    return PL.module("callbacks").ModelCheckpoint(monitor=monitor, mode="max", dirpath=folder)


@pytest.mark.parametrize("weights", ["best", "last"])
@pytest.mark.parametrize("name", ["torchscript", "checkpoint"])
def test_best_and_last_weights(container, name, weights):
    model, data = nets(name)
    # Those that are kept for their epoch or step are not the best.
    newest, best = [keeps(container, name) for name in ("epoch", "global_step")], keeps(container, "falling")
    export = callback_class(PL, "ModelExport")(export=name, export_weights=weights)
    a_trainer(container, export, [FirstIsBest(), *newest, best], max_epochs=3).fit(model, **data)
    assert all(callback.best_model_path for callback in newest)
    saved = _export.load_file(best.best_model_path, weights_only=False)
    assert not torch.equal(saved["state_dict"]["head.weight"], model.head.weight)
    expected = saved["state_dict"] if weights == "best" else model.state_dict()
    if name == "checkpoint":
        found = _export.load_file(str(container.model / "model.ckpt"), weights_only=False)
        assert found["global_step"] == (saved["global_step"] if weights == "best" else 6)
        assert len(found["optimizer_states"]) == 1
        assert_equal(found["state_dict"], expected)
    else:
        assert_equal(torch.jit.load(str(container.model / "model.pt")).state_dict(), expected)
    assert container.summary["checkpoint"] == (best.best_model_path if weights == "best" else None)
    assert container.summary["monitor"] == ("falling" if weights == "best" else None)
    assert container.summary["score"] == (float(best.best_model_score) if weights == "best" else None)


def test_best_checkpoint_is_loaded_with_weights_only(container, lines):
    class Saves(PL.module().Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["extra"] = Extra()

    model, data = nets("state_dict")
    best = PL.module("callbacks").ModelCheckpoint(monitor="val_loss", dirpath=str(container.base / "best"))
    before = Extra.loaded
    fit_net(container, model, data, best, Saves(), weights_only=True)
    assert Extra.loaded == before
    assert "Exported the last model (no readable checkpoint with the best val_loss)" in lines[-1]
    assert (container.summary["checkpoint"], container.summary["monitor"]) == (None, None)


def test_submodule_of_a_model_without_forward(container):
    options = {"export": "torchscript", "export_submodule": "encoder", "export_example_input": [1, 4]}
    model = Headless()
    fit_net(container, model, {"train_dataloaders": loader()}, **options)
    part = torch.jit.load(str(container.model / "model.pt"))
    assert_equal(part.state_dict(), model.encoder.state_dict())


class TwoInputs(Net):
    def forward(self, samples, mask):
        return super().forward(samples) * mask


@pytest.mark.parametrize(
    ("model_class", "options", "message"),
    [
        (Headless, {"export": "torchscript"}, "Headless has none"),
        (
            TwoInputs,
            {"export": "torchscript"},
            "cannot be called with the first element of a batch",
        ),
        (Net, {"export_submodule": "backbone"}, "Net has no such submodule"),
        (Dictionaries, {"export": "torchscript"}, "the first batch holds dict, no tensors"),
        (Headless, {"export": "torchscript", "export_submodule": "head"}, "there is no input to run it with"),
    ],
)
def test_unexportable_model_fails_in_the_first_step(container, model_class, options, message):
    model = model_class()
    with pytest.raises(ExportError, match=message):
        fit_net(container, model, {"train_dataloaders": loader()}, **options)
    assert len(model.losses) <= 1
    assert message in container.failure


def test_failed_export_keeps_checkpoints_and_the_previous_model(container):
    needs("torchscript")
    fit_net(container, *nets("state_dict"))
    before = exported(container)
    save = PL.module("callbacks").ModelCheckpoint(dirpath=str(container.base / "saved"))
    with pytest.raises(ExportError, match="HINT: The checkpoints are kept"):
        # The layers take 4 numbers, which the example only shows when it is run.
        fit_net(container, *nets("torchscript"), save, export="torchscript", export_example_input=[1, 9])
    assert os.path.isfile(save.best_model_path)
    assert "could not be written" in container.failure
    assert_equal(exported(container), before)
    assert sorted(os.listdir(container.model)) == ["model.json", "model.pt"]


class SavesPretrained(PL.module().Callback):
    def __init__(self, folder):
        (folder / "base").mkdir(parents=True)
        (folder / "base" / "config.json").write_text("{}")
        self.weights = folder / "base" / "pytorch_model.bin"
        self.weights.write_text("pretrained")
        (folder / "base" / "gone.bin").symlink_to("nowhere")

    def on_train_end(self, trainer, pl_module):
        self.weights.write_text(f"trained for {trainer.max_epochs} epochs")


def test_a_whole_model_counts_as_the_programs_own_if_it_is_written_during_the_fit(container, lines):
    saves = SavesPretrained(container.model)
    model, data = nets("state_dict")
    fit_net(container, model, data)  # which begins from what is there
    assert container.summary["file"] == "model.pt"
    (container.model / "model.json").unlink()
    fit_net(container, model, data, saves)
    assert "Exported nothing: the program has written base/pytorch_model.bin to" in lines[-1]
    assert not (container.model / "model.json").exists()


class ExportsInValidation(PL.module().Callback):
    """Exports and exits during validation, as a job whose time is over does."""

    def on_validation_batch_end(self, trainer, pl_module, *_, **__):
        if not trainer.sanity_checking:
            (export,) = [each for each in trainer.callbacks if isinstance(each, callback_class(PL, "ModelExport"))]
            export.export_now(trainer, pl_module)  # type: ignore[attr-defined]
            raise SystemExit


@pytest.mark.parametrize("name", ["state_dict", "onnx"])
def test_export_during_validation(container, name):
    model, data = nets(name)
    with pytest.raises(SystemExit):
        fit_net(container, model, data, ExportsInValidation(), export=name)
    assert container.summary["format"] == name
    assert container.summary["global_step"] == 2
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_best_checkpoint_that_is_not_a_file(container, tmp_path):
    model, data = nets("state_dict")
    best = PL.module("callbacks").ModelCheckpoint(monitor="val_loss", dirpath=str(container.base / "best"))
    callback = callback_class(PL, "ModelExport")()
    trainer = a_trainer(container, callback, more=[best])
    trainer.fit(model, **data)
    unknown = "cannot be read here: it is a folder of an unknown format"
    for path, words in ((str(tmp_path), unknown), (str(tmp_path / "gone"), "does not exist any more")):
        best.best_model_path = path
        with log_lines() as lines:
            callback.export_now(trainer, model)
        assert f"Best checkpoint {path} {words}; exporting the last weights instead" in lines[0]
        assert container.summary["checkpoint"] is None
    assert_equal(exported(container), model.state_dict())
