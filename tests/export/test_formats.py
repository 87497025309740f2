import pytest
import torch

from lightning_sm._export import ExportFormat, ExportPlan, ModelSummary, load_file, make_source, write_model
from lightning_sm._export.formats import drop_shared_tensors
from lightning_sm._export.inference import model_fn, read_state_dict
from lightning_sm.errors import ExportError
from tests.export.formats import SAMPLES, export, prediction
from tests.projects.nets import Net, Tied


class Tricky(Net):
    """The compiler does not know what this does."""

    def forward(self, samples):
        last = sorted([self.encoder, self.head], key=lambda layer: layer is self.head)[-1]
        return last(self.encoder(samples))


class Pair(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return {"hidden": hidden, "head": self.head(hidden)}


def outputs(found):
    return list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else [found]


@pytest.mark.parametrize(("name", "method"), [("torchscript", "script"), ("exported_program", None), ("onnx", None)])
@pytest.mark.parametrize(
    ("model_class", "submodule"), [(Net, None), (Net, "encoder"), (Tied, None), (Tied, "encoder"), (Pair, None)]
)
def test_the_output_equals_the_models(tmp_path, name, method, model_class, submodule):
    model = model_class()
    _, about = export(tmp_path, name, model, submodule=submodule)
    assert about["details"].get("method") == method
    assert about["comparison"]["compared"] == "output"
    # In torch 2.1 a program has a fixed batch size.
    assert about["comparison"]["any_batch_size"] or name == "exported_program"
    assert about["example"] == {"source": "first batch", "shapes": [[3, 4]], "dtypes": ["float32"]}
    expected, run = outputs(prediction(model.get_submodule(submodule or ""))), model_fn(str(tmp_path))
    for samples in (SAMPLES, SAMPLES[:2]) if about["comparison"]["any_batch_size"] else (SAMPLES,):
        found = outputs(run(samples))
        assert len(found) == len(expected)
        assert all(torch.allclose(each, right[: len(samples)], atol=1e-5) for each, right in zip(found, expected))


def test_model_that_cannot_be_scripted_is_traced(tmp_path):
    model = Tricky()
    path, about = export(tmp_path, "torchscript", model)
    assert about["details"] == {"method": "trace"}
    assert torch.allclose(torch.jit.load(path)(SAMPLES), prediction(model), atol=1e-6)


class Wavering(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return self.head(hidden) if hidden.sum() > 1 else -self.head(hidden)


def test_exported_program_of_one_sample_has_a_dynamic_batch(tmp_path):
    model = Net()
    _, about = export(tmp_path, "exported_program", model, SAMPLES[:1])
    if not about["comparison"]["any_batch_size"]:
        pytest.skip(f"torch {torch.__version__} has no dynamic_shapes")
    assert model_fn(str(tmp_path))(SAMPLES).shape == (3, 2)


def test_model_that_torch_export_rejects(tmp_path):
    with pytest.raises(
        ExportError, match=r"as exported_program \(.*HINT: The checkpoints are kept. Export a submodule with"
    ):
        export(tmp_path, "exported_program", Wavering())
    assert list(tmp_path.iterdir()) == []


def test_best_checkpoint_at_a_url(tmp_path):
    import fsspec

    url, saved = "memory://export/best.ckpt", {"state_dict": Net().state_dict(), "callbacks": {"x": 1}}
    with fsspec.open(url, "wb") as file:
        torch.save(saved, file)
    plan = ExportPlan(ExportFormat.CHECKPOINT)
    source = make_source(plan, None, {}, url)
    path = write_model(str(tmp_path / "model"), source, ModelSummary("m.Model"), plan=plan)
    written = load_file(path, weights_only=True)
    assert written["callbacks"] == {"x": 1}
    assert all(torch.equal(written["state_dict"][name], value) for name, value in saved["state_dict"].items())


def test_shared_tensors_are_written_once():
    base = torch.arange(6.0)
    kept, shared = drop_shared_tensors({"a": base, "b": base, "t": base.view(2, 3).t(), "empty": base[:0]})
    assert shared == {"b": "a"}
    assert set(kept) == {"a", "t", "empty"}
    assert all(value.is_contiguous() for value in kept.values())


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_safetensors_load_into_a_new_model(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "safetensors", model)
    assert about["comparison"] == {"compared": "tensors", "tensors": len(model.state_dict())}
    assert about["details"] == ({"shared": {"decoder.weight": "encoder.0.weight"}} if model_class is Tied else {})
    fresh = model_class()
    fresh.load_state_dict(read_state_dict(path, "safetensors"))
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())
    from safetensors.torch import load_model

    again = model_class()
    load_model(again, path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_tensor_called_as_safetensors_calls_its_format(tmp_path):
    pytest.importorskip("safetensors", reason="pip install safetensors")
    from safetensors.torch import save_file

    save_file({"pt": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert list(read_state_dict(tmp_path / "model.safetensors", "safetensors")) == ["pt"]
