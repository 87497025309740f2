import pytest
import torch

from lightning_sm._export.inference import load_model
from lightning_sm.errors import ExportError
from tests.export.formats import SAMPLES, export, prediction
from tests.projects.nets import Net, Tied


class Tricky(Net):
    """The compiler does not know what this does."""

    def forward(self, samples):
        last = sorted([self.encoder, self.head], key=lambda layer: layer is self.head)[-1]
        return last(self.encoder(samples))


@pytest.mark.parametrize("model_class", [Net, Tied])
@pytest.mark.parametrize("submodule", [None, "encoder"])
def test_torchscript_output_equals_the_model(tmp_path, model_class, submodule):
    model = model_class()
    path, about = export(tmp_path, "torchscript", model, submodule=submodule)
    expected = prediction(model if submodule is None else model.encoder)
    assert torch.allclose(torch.jit.load(path)(SAMPLES), expected, atol=1e-6)
    assert about["details"] == {"method": "script"}
    assert about["comparison"]["compared"] == "output"
    assert about["comparison"]["any_batch_size"] is True
    assert about["example"] == {"source": "first batch", "shapes": [[3, 4]], "dtypes": ["float32"]}


def test_model_that_cannot_be_scripted_is_traced(tmp_path):
    model = Tricky()
    path, about = export(tmp_path, "torchscript", model)
    assert about["details"] == {"method": "trace"}
    assert torch.allclose(torch.jit.load(path)(SAMPLES), prediction(model), atol=1e-6)


class Wavering(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return self.head(hidden) if hidden.sum() > 1 else -self.head(hidden)


def load_program(path):
    import torch.export

    return torch.export.load(path).module()


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_exported_program_output_equals_the_model(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "exported_program", model)
    assert torch.allclose(load_program(path)(SAMPLES), prediction(model), atol=1e-6)
    assert about["comparison"]["compared"] == "output"


def test_exported_program_of_one_sample_has_a_dynamic_batch(tmp_path):
    model = Net()
    path, about = export(tmp_path, "exported_program", model, SAMPLES[:1])
    if not about["comparison"]["any_batch_size"]:
        pytest.skip(f"torch {torch.__version__} has no dynamic_shapes")
    assert load_program(path)(SAMPLES).shape == (3, 2)


def test_model_that_torch_export_rejects(tmp_path):
    with pytest.raises(
        ExportError, match=r"as exported_program \(.*HINT: The checkpoints are kept. Export a submodule with"
    ):
        export(tmp_path, "exported_program", Wavering())
    assert list(tmp_path.iterdir()) == []


class Pair(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return {"hidden": hidden, "head": self.head(hidden)}


@pytest.mark.parametrize("model_class", [Net, Pair])
def test_onnx_output_equals_the_model(tmp_path, model_class):
    model = model_class()
    _, about = export(tmp_path, "onnx", model)
    expected = prediction(model)
    expected = list(expected.values()) if isinstance(expected, dict) else [expected]
    run = load_model(str(tmp_path))
    for samples in (SAMPLES, SAMPLES[:2]):
        outputs = run(samples)
        for found, right in zip(outputs if isinstance(outputs, list) else [outputs], expected):
            assert torch.allclose(found, right[: len(samples)], atol=1e-5)
    assert about["comparison"]["compared"] == "output"
    assert about["comparison"]["any_batch_size"] is True
