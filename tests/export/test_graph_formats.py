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
    expected, run = outputs(prediction(model.get_submodule(submodule or ""))), load_model(str(tmp_path))
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
    assert load_model(str(tmp_path))(SAMPLES).shape == (3, 2)


def test_model_that_torch_export_rejects(tmp_path):
    with pytest.raises(
        ExportError, match=r"as exported_program \(.*HINT: The checkpoints are kept. Export a submodule with"
    ):
        export(tmp_path, "exported_program", Wavering())
    assert list(tmp_path.iterdir()) == []
