import math
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._progress.schedule import describe_schedules, last_step

_SCHEDULERS = torch.optim.lr_scheduler


def trainer_with(make, interval="step", frequency=1, **more):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    config = SimpleNamespace(scheduler=make(optimizer), interval=interval, frequency=frequency)
    values = {
        "max_steps": -1,
        "max_epochs": 2,
        "num_training_batches": 16,
        "accumulate_grad_batches": 1,
        "global_step": 3,
    }
    return SimpleNamespace(lr_scheduler_configs=[config], **{**values, **more})


def one_cycle(optimizer):
    return _SCHEDULERS.OneCycleLR(optimizer, max_lr=0.1, total_steps=16)


@pytest.mark.parametrize(
    ("more", "step"),
    [
        ({}, 35),
        ({"max_steps": 20}, 20),
        ({"accumulate_grad_batches": 3}, 15),
        ({"num_training_batches": math.inf}, None),
        ({"max_epochs": -1, "max_steps": 9}, 9),
        ({"max_epochs": None}, None),
    ],
)
def test_the_last_step_of_a_training(more, step):
    assert last_step(trainer_with(one_cycle, **more), 0) == step


def test_a_schedule_that_ends_before_the_training():
    (line,) = describe_schedules(trainer_with(one_cycle), 0)
    assert line.startswith("OneCycleLR was made for 16 steps, as the checkpoint says, ")
    assert "this training ends at step 35;" in line
    assert "raises an error after step 17. HINT: Keep the global batch size" in line


def test_a_warm_up_counts_as_a_part_of_its_schedule():
    def make(optimizer):
        parts = [_SCHEDULERS.LinearLR(optimizer, total_iters=4), _SCHEDULERS.CosineAnnealingLR(optimizer, T_max=12)]
        return _SCHEDULERS.SequentialLR(optimizer, parts, milestones=[4])

    (line,) = describe_schedules(trainer_with(make), 0)
    assert line.startswith("SequentialLR was made for 16 steps, as the checkpoint says, ")
    assert "this training ends at step 35." in line
    assert not list(describe_schedules(trainer_with(make, max_steps=16), 0))


def test_functions_of_the_length_are_new_ones():
    (line,) = describe_schedules(trainer_with(lambda optimizer: _SCHEDULERS.LambdaLR(optimizer, lambda step: 1.0)), 0)
    assert "gives other learning rates than before" in line


@pytest.mark.parametrize(
    "trainer",
    [
        trainer_with(one_cycle, interval="epoch"),
        trainer_with(one_cycle, max_steps=16),
        trainer_with(lambda optimizer: _SCHEDULERS.StepLR(optimizer, 4)),
        trainer_with(lambda optimizer: _SCHEDULERS.LinearLR(optimizer, total_iters=4)),
    ],
)
def test_schedules_that_stay_right(trainer):
    assert not list(describe_schedules(trainer, 0))


def test_torch_refuses_the_step_that_the_line_names():
    scheduler = trainer_with(one_cycle).lr_scheduler_configs[0].scheduler
    for _ in range(16):
        scheduler.optimizer.step()
        scheduler.step()
    scheduler.optimizer.step()
    # torch before 1.13 counts one more.
    with pytest.raises(ValueError, match=r"Tried to step 1[78] times"):
        scheduler.step()
