import pytest
import torch

from lightning_sm._export._example import example_of_array, example_of_batch, example_of_shape
from lightning_sm.errors import ExportError


def test_a_shape_gives_the_same_numbers_and_touches_no_seed():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = example_of_shape([2, 3])
    assert torch.equal(torch.rand(1), expected)
    assert first.about() == {"source": "sagemaker.export_example_input", "shapes": [[2, 3]], "dtypes": ["float32"]}
    assert torch.equal(first.arguments[0], example_of_shape([2, 3]).arguments[0])
    assert str(first) == "Example(sagemaker.export_example_input: [2, 3])"


@pytest.mark.parametrize("batch", [torch.ones(2, 4), (torch.ones(2, 4), torch.zeros(2)), [torch.ones(2, 4), {}]])
def test_the_first_tensor_of_a_batch_is_copied(batch):
    example = example_of_batch(batch)
    (argument,) = example.arguments
    assert argument.shape == (2, 4)
    tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    tensor.zero_()
    assert argument.sum() == 8


def test_a_batch_of_inference_mode_becomes_an_ordinary_tensor():
    with torch.inference_mode():
        example = example_of_batch([torch.ones(2, 4)])
    assert not example.arguments[0].is_inference()


def test_several_arguments():
    example = example_of_array((torch.ones(2, 4), torch.ones(2, dtype=torch.int64)))
    assert example.about() == {
        "source": "example_input_array",
        "shapes": [[2, 4], [2]],
        "dtypes": ["float32", "int64"],
    }


@pytest.mark.parametrize(
    ("batch", "holds"), [({"x": 1}, "dict"), ([], "list"), ([[torch.ones(1)]], "list"), (["text", 1], "str")]
)
def test_a_batch_without_a_tensor(batch, holds):
    with pytest.raises(ExportError, match=f"the first batch holds {holds}, no tensors. HINT: Set sagemaker.export_ex"):
        example_of_batch(batch)


def test_the_precision_of_the_model():
    example = example_of_array((torch.ones(1, 4), torch.ones(1, dtype=torch.int64)))
    assert example.cast(torch.nn.Linear(4, 1).double()).about()["dtypes"] == ["float64", "int64"]
    assert example.cast(torch.nn.ReLU()) is example


def test_twice_the_batch():
    doubled = example_of_array((torch.ones(2, 4), torch.ones(2))).doubled()
    assert [argument.shape[0] for argument in doubled.arguments] == [4, 4]
    assert example_of_array((torch.ones(2, 4), torch.ones(3))).doubled() is None
    assert example_of_array(torch.tensor(1.0)).doubled() is None
