import pytest
import torch

from lightning_sm.errors import ExportError
from tests.export.formats import SAMPLES, export, prediction
from tests.projects.nets import Net, Tied


class OneSize(Net):
    def forward(self, samples):
        return self.head(self.encoder(samples)).view(3, 2)


class Wavering(Net):
    def forward(self, samples):
        hidden = self.encoder(samples)
        return self.head(hidden) if hidden.sum() > 1 else -self.head(hidden)


def load(path):
    import torch.export

    return torch.export.load(path).module()


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_the_program_predicts_as_the_model_does(tmp_path, model_class):
    model = model_class()
    path, about = export(tmp_path, "exported_program", model)
    assert torch.allclose(load(path)(SAMPLES), prediction(model), atol=1e-6)
    assert about["comparison"]["compared"] == "output"


def test_any_size_of_a_batch_also_where_the_example_has_one_sample(tmp_path):
    model = Net()
    path, about = export(tmp_path, "exported_program", model, SAMPLES[:1])
    if not about["comparison"]["any_batch_size"]:
        pytest.skip(f"torch {torch.__version__} has no dynamic_shapes")
    assert load(path)(SAMPLES).shape == (3, 2)


def test_a_model_of_one_size(tmp_path):
    model = OneSize()
    path, about = export(tmp_path, "exported_program", model)
    assert about["comparison"]["any_batch_size"] is False
    assert torch.allclose(load(path)(SAMPLES), prediction(model), atol=1e-6)


def test_what_torch_cannot_export(tmp_path):
    with pytest.raises(
        ExportError, match=r"as exported_program \(.*HINT: The checkpoints are kept. Export a part with"
    ):
        export(tmp_path, "exported_program", Wavering())
    assert list(tmp_path.iterdir()) == []
