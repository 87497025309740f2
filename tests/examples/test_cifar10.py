"""The example's data module, model and config file, with Lightning."""

import logging

import pytest

try:
    import torchvision  # noqa: F401
except Exception as error:  # a torchvision that does not fit its torch raises RuntimeError
    pytest.skip(f"torchvision cannot be imported: {error}", allow_module_level=True)
pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
pl = pytest.importorskip("pytorch_lightning", minversion="2.0", reason="the example needs Lightning 2")
torch = pytest.importorskip("torch")


def test_the_sample_is_the_default_and_says_so_once(data, caplog):
    module = data.CIFAR10DataModule()
    with caplog.at_level(logging.INFO):
        module.prepare_data()
        module.setup()
    assert [record.message for record in caplog.records if "not on CIFAR-10" in record.message] == [
        "data_dir is not set: training on the bundled sample (2,000 Fashion-MNIST pictures in CIFAR-10's "
        "file format), not on CIFAR-10."
    ]
    assert (len(module.train_set), len(module.val_set), len(module.test_set)) == (1280, 320, 400)


def test_the_split_is_repeatable_and_without_overlap(data):
    def split(seed):
        module = data.CIFAR10DataModule(seed=seed)
        torch.manual_seed(seed + 1000)
        train, val = module._split(1600)
        return train.tolist(), val.tolist()

    assert split(1) == split(1)
    assert split(1) != split(2)
    train, val = split(1)
    assert sorted(train + val) == list(range(1600))


def test_data_dir_without_the_files_lists_what_is_there(data, tmp_path):
    for number in range(12):
        (tmp_path / f"part-{number:02d}.csv").touch()
    module = data.CIFAR10DataModule(data_dir=str(tmp_path))
    module.prepare_data()
    with pytest.raises(data.CIFARFilesError, match=r"part-00\.csv, .* part-09\.csv and 2 more\. HINT"):
        module.setup("fit")


@pytest.mark.full
def test_fit_test_and_predict_with_tensorboard(data, model, tmp_path):
    pytest.importorskip("matplotlib", reason="the example draws with matplotlib")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = pl.loggers.TensorBoardLogger(str(tmp_path), name="", log_graph=True, default_hp_metric=False)
    limits = {f"limit_{stage}_batches": 2 for stage in ("train", "val", "test", "predict")}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=logger, **limits, **quiet)
    net, module = model.LitResNet(cifar_stem=False), data.CIFAR10DataModule(batch_size=8)
    before = net.net.fc.weight.detach().clone()
    trainer.fit(net, module)
    fitted = float(trainer.callback_metrics["val_acc"])
    assert {"train_loss", "val_loss"} <= set(trainer.callback_metrics)
    assert not torch.equal(before, net.net.fc.weight)
    assert set(trainer.test(net, module, verbose=False)[0]) == {"test_loss", "test_acc"}
    assert [len(labels) for labels in trainer.predict(net, module)] == [8, 8]
    again = model.LitResNet.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert again.hparams.cifar_stem is False

    events = reading.EventAccumulator(logger.log_dir).Reload()
    assert events.Tags()["graph"]
    assert [(each.step, each.width, each.height) for each in events.Images("confusion_matrix")][:1] == [(2, 640, 480)]
    assert "hp_metric" not in events.Tags()["scalars"]
    (accuracy,) = events.Scalars("hp/val_acc")
    assert accuracy.value == pytest.approx(fitted)
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_lightnings_own_cli_takes_it(data, model, cifar10_dir, own_cli):
    """Parsed, built and run for a moment, by nothing but Lightning."""
    pytest.importorskip("tensorboard", reason="config.yaml asks for TensorBoard's logger")
    built = own_cli("fit", f"--config={cifar10_dir / 'config.yaml'}", "--trainer.fast_dev_run=1")
    assert isinstance(built.model, model.LitResNet)
    assert isinstance(built.datamodule, data.CIFAR10DataModule)
    assert built.config.fit.trainer.callbacks[0].init_args.monitor == "val_acc"
