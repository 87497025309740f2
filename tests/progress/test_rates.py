"""Rates count what this process trained, and nothing else."""

import time
import timeit

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_sm._lightning import installed_namespaces, namespaced_class
from lightning_sm._progress import Rates, StepRates
from lightning_sm._progress.batches import BatchSize
from tests.helpers.tiny import loader, tiny_model

NAMESPACES = pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def recorder(namespace):
    return namespaced_class(namespace, "Recorder", "lightning_sm._progress.rates:RecordsRates", "callbacks:Callback")()


def fit(namespace, model, data, *callbacks, val=None, **arguments):
    pl = namespace.module()
    given = {"max_epochs": 1, "num_sanity_val_steps": 0, **arguments}
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **given,
    )
    trainer.fit(model, data, val)
    return trainer


def test_a_validation_does_not_count():
    clock = Clock()
    rates = StepRates(clock)
    for step in range(1, 5):
        clock.now += 0.5
        rates.fetch_started()
        clock.now += 0.5
        rates.fetch_ended()
        rates.batch_trained(8, step)
        rates.pause()
        clock.now += 10
        rates.resume()
    assert rates.total == Rates(seconds=4.0, batches=4, samples=32, waited=2.0)
    assert (rates.total.data_wait, rates.validated_for) == (0.5, 40.0)
    assert [point.seconds for point in rates.history] == [1.0, 12.0, 23.0, 34.0]


def test_rates_of_nothing_are_unknown():
    rates = StepRates(Clock()).total
    assert (rates.step_time, rates.samples_per_second, rates.batches_per_second, rates.data_wait) == (None,) * 4


def test_one_unknown_batch_makes_its_window_unknown_and_no_other():
    clock = Clock()
    rates = StepRates(clock)
    clock.now += 1
    rates.batch_trained(None, 1)
    mark = rates.mark()
    clock.now += 1
    rates.batch_trained(8, 2)
    assert rates.total.samples is None
    assert rates.since(mark).samples_per_second == 8


def test_a_clock_that_goes_backwards_gives_no_negative_rate():
    clock = Clock()
    rates = StepRates(clock)
    clock.now -= 50
    rates.batch_trained(8, 1)
    assert rates.total.seconds == 0
    assert rates.total.samples_per_second is None


def test_the_history_is_bounded_and_loses_no_batch():
    clock = Clock()
    rates = StepRates(clock, max_points=16)
    for step in range(1, 1001):
        clock.now += 1
        rates.batch_trained(4, step)
    assert len(rates.history) < 16
    assert sum(point.rates.batches for point in rates.history) >= 900
    assert {point.samples_per_second for point in rates.history} == {4.0}
    steps = [point.step for point in rates.history]
    assert steps == sorted(set(steps))


class Endless(IterableDataset):
    def __iter__(self):
        for number in range(6):
            time.sleep(0.02)
            yield torch.full((4,), float(number)), torch.zeros(1)


@NAMESPACES
def test_a_fit_is_measured(namespace):
    first, second = recorder(namespace), recorder(namespace)
    fit(namespace, tiny_model(namespace.module()), DataLoader(Endless(), batch_size=2), first, second, max_epochs=2)
    for each in (first, second):
        total = each.rates.total
        assert (total.batches, total.samples) == (6, 12)
        assert total.waited >= 0.1  # the prefetched one of each epoch is not seen in each version
        assert total.data_wait > 0.3
        assert not each.rates.is_fetching


@NAMESPACES
@pytest.mark.parametrize("is_first", [True, False])
def test_one_measures_for_a_callback_that_shares_rates(namespace, is_first):
    model = tiny_model(namespace.module())
    measuring, sharing = recorder(namespace), recorder(namespace)
    sharing.shares_rates = True
    callbacks = (sharing, measuring) if is_first else (measuring, sharing)
    fit(namespace, model, loader(samples=10, batch_size=4), *callbacks, val=loader())
    assert sharing.rates is measuring.rates
    assert sharing.rates.total.samples == 10
    assert sharing._stop_measuring is None
    # Alone it measures itself, also after that.
    fit(namespace, model, loader(samples=8, batch_size=4), sharing)
    assert sharing.rates is not measuring.rates
    assert sharing.rates.total.samples == 8


@NAMESPACES
def test_a_second_fit_counts_anew_and_leaves_nothing_behind(namespace):
    measured = recorder(namespace)
    model = tiny_model(namespace.module())
    trainer = fit(namespace, model, loader(samples=10, batch_size=4), measured, val=loader())
    assert measured.rates.total.samples == 10
    assert measured._stop_measuring is None
    trainer.validate(model, loader(), verbose=False)
    assert measured.rates.total.batches == 3
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, loader(samples=8, batch_size=4))
    assert measured.rates.total.samples in (8 * 2, 8 * 3)  # Lightning 1.5 trains the first epoch again


@NAMESPACES
def test_an_exception_ends_the_measurement(namespace):
    class Broken(type(tiny_model(namespace.module()))):
        def training_step(self, batch, batch_index):
            if batch_index == 2:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_index)

    measured = recorder(namespace)
    with pytest.raises(RuntimeError, match="broken"):
        fit(namespace, Broken(), loader(), measured)
    assert measured.rates.total.batches == 2
    assert measured._stop_measuring is None


IMAGES = [torch.zeros(3, 8, 8)] * 4


@pytest.mark.parametrize(
    ("batches", "sizes"),
    [
        ([torch.zeros(4, 2), torch.zeros(2, 2)], [4, 2]),
        ([(torch.zeros(4, 2), torch.zeros(4))], [4]),
        ([{"text": ["a"] * 4, "ids": torch.zeros(4, 9)}], [4]),
        ([{"images": IMAGES, "boxes": [{}] * 4}] * 2, [4, 4]),
        ([["a", "b", "c", "d"], ["a"]], [4, 4]),
        ([None, 3.0], [4, 4]),
        ([torch.tensor(1.0)], [4]),
        ([(torch.zeros(4), torch.zeros(4, 4))], [4]),
    ],
)
def test_the_size_of_a_batch(batches, sizes):
    reader = BatchSize.of([DataLoader(TensorDataset(torch.zeros(9)), batch_size=4)])
    assert [reader.read(batch) for batch in batches] == sizes


def test_the_size_of_a_batch_without_a_loader_that_says_it():
    own = BatchSize.of([[torch.zeros(3, 2)]])
    assert [own.read(torch.zeros(3, 2)), own.read(["a"]), own.read(torch.zeros(7))] == [3, None, 7]
    two = BatchSize.of([DataLoader([1, 2], batch_size=2), DataLoader([1], batch_size=1)])
    assert two.read({"a": torch.zeros(2), "b": torch.zeros(1)}) == 2
    assert BatchSize.of([DataLoader([1, 2], batch_size=None)]).read({"a": {"b": {"c": {"d": {"e": "f"}}}}}) is None


def test_data_that_is_less_than_one_batch():
    small = DataLoader(TensorDataset(torch.zeros(3)), batch_size=8)
    assert BatchSize.of([small]).read([torch.zeros(3)]) == 3


def test_a_batch_costs_microseconds():
    rates, size, batch = StepRates(), BatchSize(4), (torch.zeros(4, 2), torch.zeros(4))

    def step():
        rates.fetch_started()
        rates.fetch_ended()
        rates.batch_trained(size.read(batch), 1)

    # About 2; the bound allows for a busy machine.
    assert min(timeit.repeat(step, number=1000, repeat=20)) / 1000 < 20e-6
