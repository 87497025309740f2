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
