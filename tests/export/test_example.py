import pytest
import torch

from lightning_sm._export import Example, ExampleFinder
from lightning_sm.errors import ExportError


def test_example_of_shape_is_deterministic_and_keeps_the_seed():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = Example.of_shape([2, 3])
    assert torch.equal(torch.rand(1), expected)
    assert first.describe() == {"source": "sagemaker.export_example_input", "shapes": [[2, 3]], "dtypes": ["float32"]}
    assert torch.equal(first.arguments[0], Example.of_shape([2, 3]).arguments[0])
    assert str(first) == "Example(sagemaker.export_example_input: [2, 3])"


@pytest.mark.parametrize("batch", [torch.ones(2, 4), (torch.ones(2, 4), torch.zeros(2)), [torch.ones(2, 4), {}]])
def test_the_first_tensor_of_a_batch_is_copied(batch):
    example = Example.of_batch(batch)
    (argument,) = example.arguments
    assert argument.shape == (2, 4)
    tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    tensor.zero_()
    assert argument.sum() == 8


def test_inference_tensor_in_batch_becomes_a_normal_tensor():
    with torch.inference_mode():
        example = Example.of_batch([torch.ones(2, 4)])
    assert not example.arguments[0].is_inference()


def test_several_arguments():
    example = Example.of_array((torch.ones(2, 4), torch.ones(2, dtype=torch.int64)))
    assert example.describe() == {
        "source": "example_input_array",
        "shapes": [[2, 4], [2]],
        "dtypes": ["float32", "int64"],
    }


@pytest.mark.parametrize(
    ("batch", "holds"), [({"x": 1}, "dict"), ([], "list"), ([[torch.ones(1)]], "list"), (["text", 1], "str")]
)
def test_a_batch_without_a_tensor(batch, holds):
    with pytest.raises(ExportError, match=f"the first batch holds {holds}, no tensors. HINT: Set sagemaker.export_ex"):
        Example.of_batch(batch)


def test_the_precision_of_the_model():
    example = Example.of_array((torch.ones(1, 4), torch.ones(1, dtype=torch.int64)))
    assert example.cast(torch.nn.Linear(4, 1).double()).describe()["dtypes"] == ["float64", "int64"]
    assert example.cast(torch.nn.ReLU()) is example


def test_doubled_batch():
    doubled = Example.of_array((torch.ones(2, 4), torch.ones(2))).doubled()
    assert [argument.shape[0] for argument in doubled.arguments] == [4, 4]
    assert Example.of_array((torch.ones(2, 4), torch.ones(3))).doubled() is None
    assert Example.of_array(torch.tensor(1.0)).doubled() is None


BATCH = [torch.full((2, 4), 7.0), torch.zeros(2)]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(4, 3)
        self.example_input_array = None

    def forward(self, samples):
        return self.part(samples * 2)


def test_shape_takes_precedence():
    model = Model()
    model.example_input_array = torch.ones(1, 4)
    finder = ExampleFinder(shape=(3, 4))
    finder.attach(model)
    finder.observe_batch(BATCH)
    assert finder.example.describe()["shapes"] == [[3, 4]]


def test_example_input_array_takes_precedence_over_the_batch():
    model = Model()
    model.example_input_array = torch.ones(1, 4)
    finder = ExampleFinder()
    finder.attach(model)
    finder.observe_batch(BATCH)
    assert finder.example.source == "example_input_array"


def test_the_first_batch_and_no_later_one():
    finder = ExampleFinder()
    finder.attach(Model())
    finder.observe_batch(BATCH)
    finder.observe_batch("whatever")
    assert finder.example.arguments[0].mean() == 7


def test_first_input_of_a_submodule():
    model = Model()
    model.example_input_array = torch.ones(1, 9)  # the whole model's, not the part's
    finder = ExampleFinder("part")
    finder.attach(model)
    finder.observe_batch("whatever")
    model(BATCH[0])
    model(BATCH[0] * 3)
    finder.check_called()
    assert finder.example.arguments[0].mean() == 14
    assert not model.part._forward_pre_hooks


def test_submodule_that_is_never_called():
    model = Model()
    finder = ExampleFinder("part")
    finder.attach(model)
    with pytest.raises(ExportError, match="export_submodule is part, which was not called in the first training batch"):
        finder.check_called()
    finder.detach()
    assert not model.part._forward_pre_hooks


def test_submodule_called_with_keyword_arguments_only():
    model = Model()
    finder = ExampleFinder("part")
    finder.attach(model)
    with pytest.raises(ExportError, match="the first call holds nothing, no tensors"):
        model.part(input=BATCH[0])


class Two(Model):
    def forward(self, samples, mask, scale=1.0):
        return super().forward(samples) * mask * scale


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
    model = Two()
    model.example_input_array = array
    with pytest.raises(ExportError, match=rf"forward\(samples, mask, scale=1.0\) cannot be called with {says}"):
        ExampleFinder(shape=shape).attach(model)


def test_forward_with_two_inputs_and_an_example_of_both():
    model = Two()
    model.example_input_array = (torch.ones(1, 4), torch.ones(1, 3))
    finder = ExampleFinder()
    finder.attach(model)
    assert len(finder.example.arguments) == 2


def test_submodule_called_with_positional_and_keyword_arguments():
    model = Model()
    model.part = Two()
    finder = ExampleFinder("part")
    finder.attach(model)
    with pytest.raises(ExportError, match="the positional arguments of its first call"):
        model.part(BATCH[0], mask=torch.ones(2, 3))


def test_forward_without_a_signature_is_accepted():
    model = Model()
    model.forward = min
    ExampleFinder().attach(model)
