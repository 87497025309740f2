"""Which gradients a save holds: those that no optimizer has used since something was added."""

from types import SimpleNamespace

import pytest
import torch

from lightning_sm._lightning.collectives import digest_of
from lightning_sm._resume.gradients import note_steps, set_gradients, unused_gradients
from tests.helpers.interrupted import pl


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.often, self.rarely = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def add(self):
        self.rarely(self.often(torch.ones(1, 2))).sum().backward()


@pytest.fixture(name="trainer")
def _trainer():
    model = Model()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model.often, model.rarely)]
    return SimpleNamespace(lightning_module=model, optimizers=optimizers, strategy=None, training_type_plugin=None)


def test_only_what_no_step_has_used_is_saved(trainer):
    model, (often, rarely) = trainer.lightning_module, trainer.optimizers
    ends = note_steps(trainer)
    model.add()
    often.step()
    assert list(unused_gradients(trainer)) == ["rarely.weight", "rarely.bias"]
    rarely.step()
    assert unused_gradients(trainer) == {}
    # Added to the same tensors, and to new ones.
    model.add()
    assert len(unused_gradients(trainer)) == 4
    often.zero_grad()
    assert len(unused_gradients(trainer)) == 2
    model.add()
    assert len(unused_gradients(trainer)) == 4
    for end in ends:
        end()
    often.step()
    assert len(unused_gradients(trainer)) == 4
    model.automatic_optimization = True
    assert unused_gradients(trainer) == {}
    assert note_steps(trainer) == []


@pytest.mark.parametrize("name", ["optimizer_step", "optimizer_zero_grad"])
def test_they_are_saved_where_automatic_optimization_lets_the_program_decide(trainer, name):
    model = trainer.lightning_module
    model.automatic_optimization = True
    model.add()
    assert unused_gradients(trainer) == {}
    model.__class__ = type("Decides", (Model,), {name: lambda self, *args, **kwargs: None})
    assert len(unused_gradients(trainer)) == 4
    assert len(note_steps(trainer)) == 2


def test_gradients_are_saved_where_a_program_empties_them_less_often_than_it_steps(trainer):
    model, (often, rarely) = trainer.lightning_module, trainer.optimizers
    note_steps(trainer)
    model.add()
    often.step()
    often.step()
    rarely.step()
    assert unused_gradients(trainer) == {}
    model.add()
    often.step()
    rarely.step()
    assert len(unused_gradients(trainer)) == 4
    # Also with the first batch after it has emptied them.
    model.zero_grad()
    model.add()
    often.step()
    rarely.step()
    assert len(unused_gradients(trainer)) == 4


def test_ranks_that_had_other_gradients_say_so(trainer, lines):
    model = trainer.lightning_module
    model.add()
    saved = unused_gradients(trainer)
    for digest in (digest_of(saved), None, 1):
        model.zero_grad()
        set_gradients(trainer, saved, digest)
        assert digest_of(unused_gradients(trainer)) == digest_of(saved)
    assert lines == ["Not restored: gradients that each rank had summed up by itself."]
