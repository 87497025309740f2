import pytest
import torch

from lightning_sm._export import Example, ExportFormat, ExportPlan, example_of_batch, example_of_model
from lightning_sm.errors import ExportError


def example_of(model, shape=None, submodule=None):
    return example_of_model(ExportPlan(ExportFormat.ONNX, submodule=submodule, example_shape=shape), model)


class Model(torch.nn.Module):
    def __init__(self, array=None):
        super().__init__()
        self.part = torch.nn.Linear(4, 3)
        self.example_input_array = array

    def forward(self, samples):
        return self.part(samples * 2)


class Two(Model):
    def forward(self, samples, mask, scale=1.0):
        return super().forward(samples) * mask * scale


def test_an_example_of_a_shape_is_deterministic_and_keeps_the_seed():
    model = Model(torch.ones(1, 4))
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = example_of(model, (2, 4))
    assert torch.equal(torch.rand(1), expected)
    assert first.describe() == {"source": "sagemaker.export_example_input", "shapes": [[2, 4]], "dtypes": ["float32"]}
    assert torch.equal(first.arguments[0], example_of(Model(), (2, 4)).arguments[0])
    assert str(first) == "Example(sagemaker.export_example_input: [2, 4])"


def test_the_models_own_example():
    assert example_of(Model(torch.ones(1, 4))).source == "example_input_array"
    assert example_of(Model()) is None, "the first batch will be it"
    found = example_of(Two((torch.ones(2, 4), torch.ones(2, dtype=torch.int64)))).describe()
    assert found == {"source": "example_input_array", "shapes": [[2, 4], [2]], "dtypes": ["float32", "int64"]}


def test_a_submodule_has_an_example_of_its_own():
    model = Model(torch.ones(1, 9))  # the whole model's, not the part's
    with pytest.raises(ExportError, match=r"export_submodule is part, and there is no input to run it with\. HINT"):
        example_of(model, submodule="part")
    assert example_of(model, (1, 4), "part").describe()["shapes"] == [[1, 4]]
    model.part.example_input_array = torch.ones(5, 4)
    assert example_of(model, submodule="part").describe()["shapes"] == [[5, 4]]


@pytest.mark.parametrize(
    ("shape", "array", "says"),
    [
        (None, None, "the first element of a batch, which is one tensor"),
        ((1, 4), None, "sagemaker.export_example_input, which is one tensor"),
        (None, torch.ones(1, 4), "its example_input_array"),
        (None, (torch.ones(1, 4),) * 4, "its example_input_array"),
    ],
)
def test_forward_with_other_inputs_fails_before_training(shape, array, says):
    with pytest.raises(ExportError, match=rf"forward\(samples, mask, scale=1.0\) cannot be called with {says}"):
        example_of(Two(array), shape)


@pytest.mark.parametrize("batch", [torch.ones(2, 4), (torch.ones(2, 4), torch.zeros(2)), [torch.ones(2, 4), {}]])
def test_the_first_tensor_of_a_batch_is_copied(batch):
    (argument,) = example_of_batch(batch).arguments
    assert argument.shape == (2, 4)
    tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    tensor.zero_()
    assert argument.sum() == 8


@pytest.mark.parametrize(
    ("batch", "holds"), [({"x": 1}, "dict"), ([], "list"), ([[torch.ones(1)]], "list"), (["text", 1], "str")]
)
def test_a_batch_without_a_tensor(batch, holds):
    with pytest.raises(ExportError, match=f"the first batch holds {holds}, no tensors. HINT: Set sagemaker.export_ex"):
        example_of_batch(batch)


def test_the_precision_of_the_model_and_a_doubled_batch():
    example = Example((torch.ones(2, 4), torch.ones(2, dtype=torch.int64)), "first batch")
    assert example.cast(torch.nn.Linear(4, 1).double()).describe()["dtypes"] == ["float64", "int64"]
    assert example.cast(torch.nn.ReLU()).describe() == example.describe()
    assert [argument.shape[0] for argument in example.doubled().arguments] == [4, 4]
    assert Example((torch.ones(2, 4), torch.ones(3)), "").doubled() is None
    assert Example((torch.tensor(1.0),), "").doubled() is None
