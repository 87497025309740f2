import pytest
import torch

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
def test_the_graph_predicts_as_the_model_does(tmp_path, model_class, submodule):
    model = model_class()
    path, about = export(tmp_path, "torchscript", model, submodule=submodule)
    expected = prediction(model if submodule is None else model.encoder)
    assert torch.allclose(torch.jit.load(path)(SAMPLES), expected, atol=1e-6)
    assert about["details"] == {"method": "script"}
    assert about["comparison"]["compared"] == "output"
    assert about["comparison"]["any_batch_size"] is True
    assert about["example"] == {"source": "first batch", "shapes": [[3, 4]], "dtypes": ["float32"]}


def test_what_the_compiler_does_not_know_is_recorded(tmp_path):
    model = Tricky()
    path, about = export(tmp_path, "torchscript", model)
    assert about["details"] == {"method": "trace"}
    assert torch.allclose(torch.jit.load(path)(SAMPLES), prediction(model), atol=1e-6)


def test_a_graph_that_predicts_something_else_is_not_exported(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("the older model")
    load = torch.jit.load

    def load_another(path, **options):
        loaded = load(path, **options)
        with torch.no_grad():
            next(loaded.parameters()).add_(1)
        return loaded

    monkeypatch.setattr(torch.jit, "load", load_another)
    with pytest.raises(ExportError, match="as torchscript does not return what the model returns"):
        export(tmp_path, "torchscript", Net())
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert (tmp_path / "model.pt").read_text() == "the older model"
