import os
import random
from types import SimpleNamespace
from typing import TypeVar

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from lightning_sm._resume.data_values import get_sampler_state, set_sampler_state
from lightning_sm._resume.random_state import generators_within, get_process_state, set_process_state
from tests.helpers.setups import Counting, CountingLoader, Drawn, Numbers


def loaders():
    data, rng = Numbers(40), random.Random(5)
    generator, samplers = torch.Generator().manual_seed(3), {
        "numpy generator": Drawn(40, numpy.random.default_rng(5).permutation),
        "numpy random state": Drawn(40, numpy.random.RandomState(5).permutation),
        "python generator": Drawn(40, lambda count: rng.sample(range(count), count), rng),
        "count of epochs": Counting(40),
        "torch generator": RandomSampler(data, generator=torch.Generator().manual_seed(4)),
    }  # fmt: skip
    made = {name: DataLoader(data, batch_size=4, sampler=sampler) for name, sampler in samplers.items()}
    made["loader's generator"] = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    made["loader that counts"] = CountingLoader(data, batch_size=4, sampler=Counting(40))
    inner = RandomSampler(data, generator=torch.Generator().manual_seed(6))
    wrapper = pytest.importorskip("lightning_fabric.utilities.distributed").DistributedSamplerWrapper
    twice = RandomSampler(data, replacement=True, num_samples=80, generator=torch.Generator().manual_seed(7))
    wrapped = wrapper(twice, num_replicas=2, rank=1)
    made["sampler within Lightning's distributed one"] = DataLoader(data, batch_size=4, sampler=wrapped)
    made["sampler of a batch sampler"] = DataLoader(data, batch_sampler=BatchSampler(inner, 4, drop_last=False))
    return made


def test_a_seed_that_another_attempt_has_drawn_changes_no_order(monkeypatch):
    def sampler():
        return DistributedSampler(Numbers(40), num_replicas=2, rank=1, seed=int(os.environ["PL_GLOBAL_SEED"]))

    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    loader = DataLoader(Numbers(40), batch_size=4, sampler=sampler())
    process, samplers = get_process_state(), get_sampler_state(loader)
    monkeypatch.setenv("PL_GLOBAL_SEED", "9")
    other = DataLoader(Numbers(40), batch_size=4, sampler=sampler())
    assert list(other.sampler) != list(loader.sampler)
    set_sampler_state(other, samplers)
    set_process_state(process)
    # Also of a loader that is made later.
    assert list(other.sampler) == list(loader.sampler) == list(sampler())


def test_generators_are_found_wherever_they_are_held_but_the_process_has_its_own():
    class Holds:
        def __init__(self, *held):
            self.held, self.me = held, self

        def __getattr__(self, name):
            raise RuntimeError(name)

    class Proxy:
        @property
        def __dict__(self):
            raise RuntimeError("of no request")

    rng, generator = numpy.random.RandomState(1), torch.Generator()
    samples = [{"image": [0.0] * 50, "label": [1] * 50} for _ in range(100)]
    held = Holds(samples, {"a": [rng, 3]}, Holds(generator, rng), torch.nn.ParameterList(), random, Holds)
    assert generators_within(held) == {".held.1.0.0": rng, ".held.2.held.0": generator}
    # A TypeVar of Python 3.12 has no __dict__.
    assert generators_within([TypeVar("T"), Proxy(), SimpleNamespace(rng=rng)]) == {".2.rng": rng}
    assert generators_within([numpy.random.mtrand._rand, torch.default_generator, random._inst]) == {}
