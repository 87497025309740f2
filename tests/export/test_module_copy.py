import copy

import pytest
import torch

from lightning_sm._export._module_copy import copy_module, loaded_for_export, part_of_state_dict
from tests.projects.nets import Net, Tied


def run_once(model):
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    model.losses.append(loss)
    return model


@pytest.mark.parametrize("model_class", [Net, Tied])
def test_a_copy_has_the_same_weights_and_nothing_of_the_training(model_class):
    model = run_once(model_class())
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)  # the loss that was kept has a graph
    copied = copy_module(model)
    ready = loaded_for_export(copied, model.state_dict(), None)
    model.eval()
    samples = torch.randn(3, 4)
    assert torch.equal(ready(samples), model(samples))
    assert all(parameter.grad is None for parameter in ready.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not torch.equal(ready(samples), model(samples))


def test_a_tensor_with_two_names_stays_one():
    copied = copy_module(Tied())
    assert copied.decoder.weight is copied.encoder[0].weight


def test_the_model_that_trains_stays_as_it_is():
    model = run_once(Net())
    model.losses.append(model.losses)  # whoever looks through it must not go round in circles
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded_for_export(copy_module(model), {name: value * 0 for name, value in before.items()}, "encoder")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_part():
    model = Net()
    part = loaded_for_export(copy_module(model), model.state_dict(), "encoder.0")
    assert isinstance(part, torch.nn.Linear)
    assert not part.training
    assert set(part_of_state_dict(model.state_dict(), "encoder.0")) == {"weight", "bias"}
    assert set(part_of_state_dict(model.state_dict(), None)) == set(model.state_dict())


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with torch 2.0")
def test_what_torch_has_compiled_is_exported_as_it_was_written():
    model = Net()
    model.encoder = torch.compile(model.encoder)
    ready = loaded_for_export(copy_module(model), model.state_dict(), None)
    assert type(ready.encoder) is torch.nn.Sequential
    assert type(loaded_for_export(copy_module(model), model.state_dict(), "encoder")) is torch.nn.Sequential
    assert type(model.encoder) is not torch.nn.Sequential
