import pytest
import torch

from lightning_sm._export import ExampleFinder, ExportPlan
from lightning_sm.errors import ExportError

BATCH = [torch.full((2, 4), 7.0), torch.zeros(2)]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(4, 3)
        self.example_input_array = None

    def forward(self, samples):
        return self.part(samples * 2)


def test_the_shape_comes_before_everything():
    model = Model()
    model.example_input_array = torch.ones(1, 4)
    finder = ExampleFinder(ExportPlan(example_shape=(3, 4)))
    finder.start(model)
    finder.see_batch(BATCH)
    assert finder.example.about()["shapes"] == [[3, 4]]


def test_the_array_comes_before_the_batch():
    model = Model()
    model.example_input_array = torch.ones(1, 4)
    finder = ExampleFinder(ExportPlan())
    finder.start(model)
    finder.see_batch(BATCH)
    assert finder.example.source == "example_input_array"


def test_the_first_batch_and_no_later_one():
    finder = ExampleFinder(ExportPlan())
    finder.start(Model())
    finder.see_batch(BATCH)
    finder.see_batch("whatever")
    assert finder.example.arguments[0].mean() == 7


def test_the_first_input_of_a_part():
    model = Model()
    model.example_input_array = torch.ones(1, 9)  # the whole model's, not the part's
    finder = ExampleFinder(ExportPlan(submodule="part"))
    finder.start(model)
    finder.see_batch("whatever")
    model(BATCH[0])
    model(BATCH[0] * 3)
    finder.after_batch()
    assert finder.example.arguments[0].mean() == 14
    assert not model.part._forward_pre_hooks


def test_a_part_that_no_step_uses():
    model = Model()
    finder = ExampleFinder(ExportPlan(submodule="part"))
    finder.start(model)
    with pytest.raises(ExportError, match="export_submodule is part, and the first batch was trained without a call"):
        finder.after_batch()
    finder.stop()
    assert not model.part._forward_pre_hooks


def test_a_part_whose_arguments_have_names():
    model = Model()
    finder = ExampleFinder(ExportPlan(submodule="part"))
    finder.start(model)
    with pytest.raises(ExportError, match="the first call holds nothing, no tensors"):
        model.part(input=BATCH[0])


class Two(Model):
    def forward(self, samples, mask, scale=1.0):
        return super().forward(samples) * mask * scale


@pytest.mark.parametrize(
    ("plan", "array", "says"),
    [
        (ExportPlan(), None, "the first part of a batch, which is one tensor"),
        (ExportPlan(example_shape=(1, 4)), None, "sagemaker.export_example_input, which is one tensor"),
        (ExportPlan(), torch.ones(1, 4), "its example_input_array"),
        (ExportPlan(), (torch.ones(1, 4),) * 4, "its example_input_array"),
    ],
)
def test_a_forward_that_takes_other_inputs_is_no_surprise_after_training(plan, array, says):
    model = Two()
    model.example_input_array = array
    with pytest.raises(ExportError, match=rf"forward\(samples, mask, scale=1.0\) cannot be called with {says}"):
        ExampleFinder(plan).start(model)


def test_a_forward_of_two_inputs_that_has_both():
    model = Two()
    model.example_input_array = (torch.ones(1, 4), torch.ones(1, 3))
    finder = ExampleFinder(ExportPlan())
    finder.start(model)
    assert len(finder.example.arguments) == 2


def test_a_part_that_is_called_with_some_names():
    model = Model()
    model.part = Two()
    finder = ExampleFinder(ExportPlan(submodule="part"))
    finder.start(model)
    with pytest.raises(ExportError, match="the positional arguments of its first call"):
        model.part(BATCH[0], mask=torch.ones(2, 3))


def test_code_without_a_signature_is_run():
    model = Model()
    model.forward = min
    ExampleFinder(ExportPlan()).start(model)
