"""The language model of the examples: its text, data module, model and config files, with Lightning."""

import gzip
import math

import pytest

from tests.helpers.processes import ROOT

pl = pytest.importorskip("pytorch_lightning", minversion="2.0", reason="the example needs Lightning 2")
torch = pytest.importorskip("torch", minversion="2.0", reason="the example needs torch 2")

EXAMPLES, EXAMPLE = ROOT / "examples", "transformer"
TRANSFORMER = EXAMPLES / EXAMPLE
SMALL = {"context": 16, "layers": 2, "width": 16, "heads": 2}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of a small model cost more than they save, and far more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_parts_are_the_text_without_overlap(data):
    module = data.TextDataModule(context=100)
    module.setup("fit")
    parts = [bytes(each.text.tolist()) for each in (module.train_set, module.val_set, module.test_set)]
    assert b"".join(parts) == data.read_text(data.SAMPLE)
    assert [len(part) * 100 // 1358459 for part in parts] == [90, 4, 4]


def test_what_follows_is_predicted(data, tmp_path):
    (tmp_path / "b.txt").write_bytes(b"b" * 100)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(range(100)) * 20))
    (tmp_path / "c.bin").write_bytes(b"c")
    module = data.TextDataModule(str(tmp_path), context=10, batch_size=3)
    module.setup()
    seen, following = module.train_set[3]
    assert (seen.tolist(), following.tolist()) == (list(range(30, 40)), list(range(31, 41)))
    assert len(module.train_set) == (2101 * 9 // 10) // 10
    assert [tuple(part.shape) for part in next(iter(module.train_dataloader()))] == [(3, 10), (3, 10)]


@pytest.mark.parametrize("content", [b"short", b"x" * 200], ids=len)
def test_too_little_text(data, tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(data.TextError, match=rf"has {len(content)} bytes, .* holds no window of 64. HINT"):
        data.TextDataModule(str(tmp_path)).setup()


def test_no_byte_sees_what_follows(model):
    net = model.LitGPT(**SMALL).eval()
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 256
    before, after = net(tokens), net(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_fit_learns_and_test_and_predict_run(data, model, tmp_path):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    limits = {"limit_val_batches": 2, "limit_test_batches": 2, "limit_predict_batches": 1, "val_check_interval": 20}
    trainer = pl.Trainer(accelerator="cpu", devices=1, default_root_dir=str(tmp_path), max_steps=20, **limits, **quiet)
    net, module = model.LitGPT(lr=0.03, **SMALL), data.TextDataModule(context=16)
    trainer.fit(net, module)
    metrics = trainer.callback_metrics
    assert metrics["val_bpc"].item() < 6
    assert metrics["val_bpc"].item() == pytest.approx(metrics["val_loss"].item() / math.log(2))
    assert set(trainer.test(net, module, verbose=False)[0]) == {"test_loss", "test_bpc"}
    (predicted,) = trainer.predict(net, module)
    assert predicted.shape == (32, 16)
    assert trainer.optimizers[0].param_groups[0]["lr"] < 1e-4

    again = model.LitGPT.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert again.hparams.width == 16


@pytest.fixture
def parsed(data, model, own_cli):
    """Parse config files of the example; returns a function."""

    class Trainer(pl.Trainer):
        """Keeps what a Trainer would check against the machine."""

        def __init__(self, strategy="auto", **kwargs):
            self.given = strategy
            super().__init__(strategy="auto", **kwargs)

    def parse(*names, words=()):
        configs = (f"--config={TRANSFORMER / name}" for name in names)
        return own_cli(*configs, *words, trainer_class=Trainer, run=False)

    return parse


def test_lightnings_own_cli_takes_it(parsed, model, data):
    built = parsed("config.yaml", words=["--trainer.fast_dev_run=1"])
    built.trainer.fit(built.model, built.datamodule)
    assert isinstance(built.model, model.LitGPT)
    assert isinstance(built.datamodule, data.TextDataModule)
    assert built.model.hparams.context == built.datamodule.hparams.context


@pytest.mark.parametrize("path", sorted(TRANSFORMER.glob("*fsdp*.yaml")), ids=lambda path: path.stem)
def test_fsdp(parsed, path):
    strategy = parsed("config.yaml", path.name).config["trainer"]["strategy"].as_dict()
    assert strategy["class_path"].rpartition(".")[2].endswith(("FSDPStrategy", "ModelParallelStrategy"))


@pytest.mark.full
@pytest.mark.parametrize("path", sorted(TRANSFORMER.glob("*deepspeed*.yaml")), ids=lambda path: path.stem)
def test_deepspeed(parsed, path, monkeypatch):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    monkeypatch.chdir(TRANSFORMER)
    built = parsed("config.yaml", path.name, words=["--trainer.logger=false"])
    stage = built.trainer.given.config["zero_optimization"]["stage"]
    assert stage == (2 if path.stem == "deepspeed_stage_2" else 3)


_INDEPENDENT = ("cifar10/model", "cifar10/data", "cifar10/cifar_files", "transformer/model", "transformer/data")


@pytest.mark.parametrize("name", _INDEPENDENT)
def test_nothing_in_an_example_knows_where_it_runs(name):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").lower()
    assert not any(word in source for word in ("sagemaker", "lightning_sm", "/opt/ml", "sm_", "environ"))
