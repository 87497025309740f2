import logging

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from lightning_sm._position.sampler import resumable_sampler_of
from tests.helpers.interrupted import NAMESPACE, Numbers, Saver, path_of, pl, same_weights, shuffled, train

WITHIN = NAMESPACE.version >= (1, 6)
within_epochs = pytest.mark.skipif(not WITHIN, reason="Lightning 1.5 goes on with the next epoch")


def validation():
    return DataLoader(Numbers(8), batch_size=4)


def assert_goes_on(folder, moments, expected, loader, **arguments):
    """Train once with checkpoints at these moments; go on from each, and compare with the run that went on at once.

    ``expected`` tells how many batches are left after each.
    """
    plain = train(loader, ours=False, **arguments)
    whole = train(loader, saver=Saver(folder, moments), **arguments)
    assert same_weights(whole, plain)
    for moment, left in zip(moments, expected):
        resumed = train(loader, checkpoint=path_of(folder, *moment), **arguments)
        assert len(resumed.seen) == left, moment
        assert resumed.seen == whole.seen[len(whole.seen) - left :], moment
        assert resumed.events == whole.events[len(whole.events) - len(resumed.events) :], moment
        assert same_weights(resumed, whole), moment
        assert resumed.trained_by.global_step == whole.trained_by.global_step


@within_epochs
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    # In an epoch of six batches: in its middle, in its last batch, after it, before the next.
    moments = [
        ("on_train_batch_end", 3),
        ("on_train_batch_end", 8),
        ("on_train_batch_end", 6),
        ("on_train_epoch_end", 1),
        ("on_train_epoch_start", 2),
        ("on_train_epoch_end", 3),
    ]
    assert_goes_on(tmp_path, moments, [15, 10, 12, 12, 12, 0], lambda: shuffled(noisy=True))


@within_epochs
def test_a_batch_that_was_begun_is_trained_again(tmp_path):
    assert_goes_on(tmp_path, [("on_train_batch_start", 9)], [10], shuffled)


@within_epochs
def test_stock_lightning_trains_other_batches(tmp_path):
    whole = train(shuffled, ours=False, saver=Saver(tmp_path, [("on_train_batch_end", 3)]))
    resumed = train(shuffled, ours=False, checkpoint=path_of(tmp_path, "on_train_batch_end", 3))
    assert resumed.seen != whole.seen[-len(resumed.seen) :]
    assert not same_weights(resumed, whole)
    of_first_epoch = [index for epoch, *_, indices in resumed.seen if epoch == 0 for index in indices]
    trained_before = [index for *_, indices in whole.seen[:3] for index in indices]
    assert set(of_first_epoch) & set(trained_before)


@within_epochs
def test_validation_within_the_epoch_is_run_once(tmp_path):
    moments = [
        ("on_train_batch_end", 3),  # before a validation
        ("on_train_batch_end", 6),
        ("on_validation_batch_end", 3),  # within one
        ("on_validation_end", 1),
        ("on_validation_end", 2),
    ]
    assert_goes_on(tmp_path, moments, [15, 12, 12, 15, 12], shuffled, val_loader=validation(), val_check_interval=3)


@within_epochs
def test_interrupted_again_and_again(tmp_path):
    arguments = {"val_loader": validation(), "val_check_interval": 3}
    whole = train(shuffled, saver=Saver(tmp_path, [("on_train_batch_end", 3)]), **arguments)
    # The second checkpoint is written before the resumed run has asked for a batch.
    moments = [("on_validation_end", 1), ("on_train_batch_end", 5)]
    checkpoint = path_of(tmp_path, "on_train_batch_end", 3)
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        train(shuffled, checkpoint=checkpoint, saver=Saver(folder, [moment]), **arguments)
        checkpoint = path_of(folder, *moment)
    resumed = train(shuffled, checkpoint=checkpoint, **arguments)
    assert resumed.seen == whole.seen[8:]
    assert same_weights(resumed, whole)


@within_epochs
def test_a_checkpoint_for_a_validation_is_none_for_the_fit_that_follows(tmp_path):
    whole = train(shuffled, saver=Saver(tmp_path, [("on_train_batch_end", 3)]), max_epochs=1)
    trainer = whole.trained_by
    (position,) = (callback for callback in trainer.callbacks if type(callback).__name__ == "DataPosition")
    position.load_state_dict({"place": {}})
    trainer.fit_loop.max_epochs = 2
    trainer.fit(whole, shuffled())
    assert [seen[:2] for seen in whole.seen[6:]] == [(1, batch) for batch in range(6)]


@within_epochs
def test_gradients_that_wait_for_a_step_are_made_again(tmp_path):
    moments = [("on_train_batch_end", 3), ("on_train_batch_end", 8), ("on_train_batch_end", 11)]
    assert_goes_on(tmp_path, moments, [16, 10, 8], lambda: shuffled(noisy=True), accumulate_grad_batches=2)


@within_epochs
def test_workers(tmp_path):
    moments = [("on_train_batch_end", 3), ("on_train_batch_end", 9)]
    assert_goes_on(tmp_path, moments, [9, 3], lambda: shuffled(workers=2), max_epochs=2)


@within_epochs
@pytest.mark.parametrize("scheduler", ["steps", "metric"])
def test_schedulers(tmp_path, scheduler):
    moments = [("on_train_batch_end", 2), ("on_validation_end", 1), ("on_train_epoch_end", 1)]
    assert_goes_on(tmp_path, moments, [16, 12, 12], shuffled, val_loader=validation(), scheduler=scheduler)


@within_epochs
def test_a_shorter_loader_begins_anew_within_the_epoch(tmp_path):
    # Lightning combines the two: six batches of one, four of the other and two of it again.
    moments = [("on_train_batch_end", 3), ("on_train_batch_end", 4), ("on_train_batch_end", 11)]
    assert_goes_on(tmp_path, moments, [9, 8, 1], lambda: [shuffled(), shuffled(batch_size=6)], max_epochs=2)


class Backwards:
    """A batch sampler of a project's own, which draws its order when it is asked for an iterator."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        order = torch.randperm(self.size).tolist()
        return iter([order[start : start + 3] for start in range(0, self.size, 3)])

    def __len__(self):
        return self.size // 3


@within_epochs
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_of_the_project(tmp_path, workers):
    def loader():
        return DataLoader(Numbers(12), batch_sampler=Backwards(12), num_workers=workers)

    moments = [("on_train_batch_end", 1), ("on_train_batch_end", 6)]
    assert_goes_on(tmp_path, moments, [7, 2], loader, max_epochs=2)


@within_epochs
def test_a_loader_with_a_generator_of_its_own(tmp_path):
    def loader():
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator)

    assert_goes_on(tmp_path, [("on_train_batch_end", 3)], [9], loader, max_epochs=2)


@within_epochs
def test_limited_epochs_and_steps(tmp_path):
    moments = [("on_train_batch_end", 3), ("on_train_batch_end", 5), ("on_train_epoch_end", 1)]
    assert_goes_on(tmp_path, moments, [10, 8, 8], shuffled, limit_train_batches=5, max_steps=13, max_epochs=-1)


@within_epochs
def test_ranks_and_runs_with_another_seed_keep_their_random_numbers(tmp_path):
    whole = train(shuffled, saver=Saver(tmp_path, [("on_train_batch_end", 3)]))
    resumed = train(shuffled, checkpoint=path_of(tmp_path, "on_train_batch_end", 3), seed=8)
    # The epoch that was begun is trained to its end; what follows is drawn from the new seed.
    assert resumed.seen[:3] == whole.seen[3:6]
    assert resumed.seen[3:] != whole.seen[6:]
    assert not same_weights(resumed, whole)


@within_epochs
@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: shuffled(batch_size=3), "its batch size was 4 and is 3"),
        (lambda: shuffled(size=28), "an epoch had 6 batches per rank and has 7"),
    ],
)
def test_with_other_batches_the_epoch_starts_anew(tmp_path, caplog, monkeypatch, loader, said):
    monkeypatch.setattr(logging.getLogger("lightning_sm"), "propagate", True)
    train(shuffled, saver=Saver(tmp_path, [("on_train_batch_end", 9)]))
    resumed = train(loader, checkpoint=path_of(tmp_path, "on_train_batch_end", 9))
    per_epoch = len(loader())
    assert [(epoch, batch) for epoch, batch, *_ in resumed.seen] == [
        (epoch, batch) for epoch in (1, 2) for batch in range(per_epoch)
    ]
    assert resumed.seen[0][2] == 9  # steps are counted on
    assert f"Restarting epoch 1: the checkpoint is from epoch 1 after 3 batches, but {said}" in caplog.text


class Stream(IterableDataset):
    def __init__(self):
        self.numbers = Numbers()

    def __iter__(self):
        return (self.numbers[index] for index in range(len(self.numbers)))


@within_epochs
def test_a_stream_starts_at_its_beginning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lightning_sm"), "propagate", True)

    def loader():
        return DataLoader(Stream(), batch_size=4)

    arguments = {"limit_train_batches": 5, "max_epochs": 2}
    whole = train(loader, saver=Saver(tmp_path, [("on_train_batch_end", 7)]), **arguments)
    resumed = train(loader, checkpoint=path_of(tmp_path, "on_train_batch_end", 7), **arguments)
    # Batches are counted on, so that an epoch comes to its end however often it is interrupted.
    assert [seen[:3] for seen in resumed.seen] == [seen[:3] for seen in whole.seen[7:]]
    assert [seen[3] for seen in resumed.seen] == [seen[3] for seen in whole.seen[:3]]
    assert "The data starts at its beginning, in epoch 1 after 2 batches: Stream is an IterableDataset" in caplog.text


@within_epochs
def test_a_checkpoint_without_a_position(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lightning_sm"), "propagate", True)
    train(shuffled, ours=False, saver=Saver(tmp_path, [("on_train_batch_end", 3)]))
    train(shuffled, checkpoint=path_of(tmp_path, "on_train_batch_end", 3), max_epochs=1)
    assert "The checkpoint has no position in the training data." in caplog.text


@pytest.mark.skipif(WITHIN, reason="from Lightning 1.6 on, a run goes on within its epoch")
def test_lightning_1_5_goes_on_with_the_next_epoch(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lightning_sm"), "propagate", True)
    train(shuffled, saver=Saver(tmp_path, [("on_train_batch_end", 3)]))
    resumed = train(shuffled, checkpoint=path_of(tmp_path, "on_train_batch_end", 3))
    assert [seen[:2] for seen in resumed.seen] == [(epoch, batch) for epoch in (1, 2) for batch in range(6)]
    assert "this version of Lightning resumes with the next epoch" in caplog.text


@within_epochs
def test_a_restricted_load_accepts_the_checkpoint(tmp_path):
    pytest.importorskip("torch", minversion="2.0", reason="a restricted load of torch 1.13 knows no float")
    train(lambda: shuffled(noisy=True), saver=Saver(tmp_path, [("on_train_batch_end", 3)]), max_epochs=1)
    path = path_of(tmp_path, "on_train_batch_end", 3)
    saved = torch.load(path, map_location="cpu", weights_only=True)["callbacks"]["DataPosition"]
    assert saved["position"]["batch"] == 3
    assert saved["data"] == {"world_size": 1, "batches": [6], "batch_sizes": [4]}


@within_epochs
def test_trainer_and_loader_are_left_as_they_were():
    loader = DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(24)), 4, False))
    before = loader.batch_sampler
    model = train(lambda: loader, max_epochs=1)
    assert loader.batch_sampler is before
    assert resumable_sampler_of(loader) is None
    trainer = model.trained_by
    assert "advance" not in vars(trainer.fit_loop.epoch_loop)
    assert "process_dataloader" not in vars(trainer.strategy)
    assert not {"setup_data"} & set(vars(trainer.fit_loop)) | {"reset_train_dataloader"} & set(vars(trainer))


def test_nothing_is_saved_outside_of_fit():
    from lightning_sm.callbacks import callback_class

    callback = callback_class(NAMESPACE, "DataPosition")()
    callback.setup(pl.Trainer(accelerator="cpu", devices=1, logger=False), None, "validate")
    assert callback.state_dict() == {}
